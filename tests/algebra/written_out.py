"""Monoids written out, one line each: wrong ones, and right ones that are easily taken for wrong.

Combine, identity and the options of `Monoid`, by what they do.
"""
# fmt: off
# ruff: noqa: E501, E702  # tables, a monoid a line

from __future__ import annotations

from typing import Any

import torch

from tilefold import math as m

w, mx, mn = m.where, m.maximum, m.minimum
INF = float("inf")
Table = dict[str, tuple[Any, Any, dict[str, Any]]]


def ones(x: Any) -> Any:
    """A lift of two values."""
    return w(x > 0, 1, 0)


def of(*fields: str, **options: Any) -> dict[str, Any]:
    return {"fields": fields, **options}


WRONG: Table = {
'period':(lambda a,b:w((a+b)%7==0,0,a+b),None,{"lift": ones}),
'rarefloat':(lambda a,b:w(b==0.1234567,0,a+b),0,{}),
'rare sum float':(lambda a,b:w(a+b==1e6+0.5,0,a+b),0,{}),
'prodthr':(lambda a,b:w(a*b>1e5,a,a*b),None,{"domain": (1,10)}),
'prodthr2':(lambda a,b:w(a*b>1e5,1,a*b),1,{"lift": lambda x:w(x>0,2,1)}),
'lse cut20':(lambda a,b:mx(a,b)+w(abs(a-b)>20,0,m.log1p(m.exp(-abs(a-b)))),None,{}),
'lse approx':(lambda a,b:w(abs(a-b)<0.5,mx(a,b)+0.7,mx(a,b)),None,{}),
'fnv':(lambda a,b:(a^b)*16777619,None,{"dtypes": torch.int64}),
'implication':(lambda a,b:~a|b,None,{"lift": lambda x:x>0,"dtypes": torch.bool}),
'nand':(lambda a,b:~(a&b),None,{"lift": lambda x:x>0,"dtypes": torch.bool}),
'and not':(lambda a,b:a&~b,None,{"lift": lambda x:x>0,"dtypes": torch.bool}),
'switch by n':(lambda a,b:(a.n+b.n,w(a.n+b.n>100,mx(a.s,b.s),a.s+b.s)),(0,0),of('n','s',lift=lambda x:(1,x))),
'index gap':(lambda a,b:(w(b.i-a.i>5,b.v,a.v+b.v),b.i),None,of('v','i',lift=lambda x,i:(x,i),index=True)),
'index gap100':(lambda a,b:(w(b.i-a.i>100,b.v,a.v+b.v),b.i),None,of('v','i',lift=lambda x,i:(x,i),index=True)),
'count with index':(lambda a,b:(w(a.n+b.n>50,0,a.n+b.n),mx(a.i,b.i)),(0,-1),of('n','i',lift=lambda x,i:(w(x>0,1,0),i),index=True)),
'count with index 500':(lambda a,b:(w(a.n+b.n>100,0,a.n+b.n),mx(a.i,b.i)),(0,-1),of('n','i',lift=lambda x,i:(1,i),index=True)),
'dup':(lambda a,b:w(a==b,a,a+b),None,{}),
'boyer':(lambda a,b:(w(a.n>=b.n,a.c,b.c),w(a.c==b.c,a.n+b.n,abs(a.n-b.n))),None,of('c','n',lift=lambda x:(x,1))),
'boyer int':(lambda a,b:(w(a.n>=b.n,a.c,b.c),w(a.c==b.c,a.n+b.n,abs(a.n-b.n))),None,of('c','n',lift=lambda x:(x,1),dtypes=torch.int64)),
'castprod':(lambda a,b:m.cast(a*b*1.5,torch.int64),None,{"dtypes": torch.int64}),
'sat counter int':(lambda a,b:w(a>=255,a,w(b>=255,255,a+b)),0,{"lift": ones}),
'tol2':(lambda a,b:(w(b.x>a.x+1e-6,b.x,a.x),w(b.x>a.x+1e-6,b.y,a.y)),None,of('x','y')),
'tol rel log':(lambda a,b:w(m.log(b)-m.log(a)>1e-8,b,a),None,{"domain": 'positive'}),
'tol ratio':(lambda a,b:w(b/a>1+1e-10,b,a),None,{"domain": 'positive'}),
'floor sqrt':(lambda a,b:m.floor(m.sqrt(a*a+b*b)),None,{"lift": abs}),
'eps':(lambda a,b:a+b+1e-9*a*b*(a-b),0,{}),
'eps2':(lambda a,b:a+b*(1+1e-9),None,{}),
'eps int':(lambda a,b:a+b+((a*b)//1000000007),0,{"dtypes": torch.int64}),
'thr 2^35':(lambda a,b:w(a+b>2**35,0,a+b),0,{"lift": ones}),
'thr both':(lambda a,b:w((a>5000)&(b>5000),0,a+b),0,{"lift": ones}),
'thr a.n*b.n':(lambda a,b:(w(a.n*b.n>5000,1,a.n+b.n),a.s+b.s),None,of('n','s',lift=lambda x:(1,x))),
'thr sum of fields':(lambda a,b:(w(a.x+b.y>77,0,a.x+b.x),a.y+b.y),None,of('x','y',lift=lambda x:(abs(x),abs(x)))),
'left limit':(lambda a,b:w(a>1e9,a,a+b),0,{"lift": ones}),
'clip':(lambda a,b:mx(mn(a+b,127),-128),0,{"lift": lambda x:mx(mn(x,127),-128)}),
'u8mean':(lambda a,b:(a+b+1)>>1,None,{"dtypes": torch.int64}),
'abs rare':(lambda a,b:w(abs(b-4321)<0.5,a,a+b),0,{"lift": ones}),
'xor carry':(lambda a,b:(a+b)^(a&b),0,{"dtypes": torch.int64}),
'renorm':(lambda a,b:(a+b)/m.sqrt(1+a*a*b*b),0,{}),
'gyro':(lambda a,b:((a.x*(1+b.x*b.x+b.y*b.y)+b.x*(1-a.x*a.x-a.y*a.y))/(1+2*(a.x*b.x+a.y*b.y)+(a.x*a.x+a.y*a.y)*(b.x*b.x+b.y*b.y)),a.y+b.y),(0,0),of('x','y',domain=(-.5,.5))),
'last in 3':(lambda a,b:(mn(a.n+b.n,3),w(b.n>=3,b.s,a.s+b.s)),(0,0),of('n','s',lift=lambda x:(1,x))),
'decay by n':(lambda a,b:(a.n+b.n,a.s*0.9+b.s),(0,0),of('n','s',lift=lambda x:(1,x))),
'float32 tol':(lambda a,b:w(b>a+1e-5,b,a),None,{"dtypes": torch.float32}),
'fl32 thr':(lambda a,b:w(a+b>100000,0,a+b),0,{"dtypes": torch.float32,"lift": ones}),
'int8 thr':(lambda a,b:w(a+b>100,0,a+b),0,{"dtypes": torch.int8,"lift": ones}),
'int32 rare':(lambda a,b:w(b==123456789,0,a+b),0,{"dtypes": torch.int32}),
'uint8':(lambda a,b:w(a+b>200,0,a+b),0,{"dtypes": torch.uint8,"lift": ones}),
'uint64':(lambda a,b:w(a+b>2000,0,a+b),0,{"dtypes": torch.uint64,"lift": ones}),
'mask lift':(lambda a,b:w(a+b>90,0,a+b),0,{"lift": lambda x:x&1,"dtypes": torch.int64}),
'mod lift':(lambda a,b:w(b==50,0,a+b),0,{"lift": lambda x:x%3,"dtypes": torch.int64}),
'sign':(lambda a,b:w(a+b>50,0,a+b),0,{"lift": lambda x:w(x>0,1,w(x<0,-1,0))}),
'neg thr':(lambda a,b:w(a+b<-3000,0,a+b),0,{"lift": lambda x:w(x<0,-1,0)}),
}


def chan(a,b):
    n=a.n+b.n; d=b.mean-a.mean; s=w(n==0,0.,b.n/w(n==0,1.,n))
    return n,a.mean+d*s,a.M2+b.M2+d*d*a.n*s
def kurt(a,b):
    n=a.n+b.n;d=b.m-a.m
    M2=a.s+b.s+d*d*a.n*b.n/n
    M3=a.t+b.t+d*d*d*a.n*b.n*(a.n-b.n)/(n*n)+3*d*(a.n*b.s-b.n*a.s)/n
    M4=a.u+b.u+d*d*d*d*a.n*b.n*(a.n*a.n-a.n*b.n+b.n*b.n)/(n*n*n)+6*d*d*(a.n*a.n*b.s+b.n*b.n*a.s)/(n*n)+4*d*(a.n*b.t-b.n*a.t)/n
    return n,a.m+d*b.n/n,M2,M3,M4
def qn(p,q):
    r=(p.w*q.w-p.x*q.x-p.y*q.y-p.z*q.z,p.w*q.x+p.x*q.w+p.y*q.z-p.z*q.y,p.w*q.y-p.x*q.z+p.y*q.w+p.z*q.x,p.w*q.z+p.x*q.y-p.y*q.x+p.z*q.w)
    n=m.sqrt(r[0]*r[0]+r[1]*r[1]+r[2]*r[2]+r[3]*r[3])
    return tuple(v/n for v in r)
def twosum(a,b):
    s=a.s+b.s; t=s-a.s; e=(a.s-(s-t))+(b.s-t)
    return s,a.c+b.c+e
def fast(a,b):
    s=a.s+b.s; t=s-a.s; e=(a.s-(s-t))+(b.s-t)+a.c+b.c
    r=s+e
    return r,e-(r-s)


RIGHT: Table = {
'chan':(chan,(0,0,0),of('n','mean','M2',lift=lambda x:(1.,x*1.,0.))),
'chan int':(chan,(0,0,0),of('n','mean','M2',lift=lambda x:(1,x,0.))),
'kurt':(kurt,None,of('n','m','s','t','u',lift=lambda x:(1.,x*1.,0.,0.,0.))),
'qn':(qn,None,of('w','x','y','z',lift=lambda x:(m.cos(x),m.sin(x),0.*x,.5+0*x))),
'twosum':(twosum,(0,0),of('s','c',lift=lambda x:(x,0.),project=lambda s,c:s+c)),
'fast':(fast,(0,0),of('s','c',lift=lambda x:(x,0.),project=lambda s,c:s+c)),
'gauss':(lambda a,b:((a.mu*b.v+b.mu*a.v)/(a.v+b.v),a.v*b.v/(a.v+b.v)),None,of('mu','v',lift=lambda x,v:(x,v),domain=(None,(.01,10)))),
'gauss fin':(lambda a,b:((a.mu*b.v+b.mu*a.v)/(a.v+b.v),a.v*b.v/(a.v+b.v)),None,of('mu','v',lift=lambda x,v:(x,v),domain=("finite","positive"))),
'bayes':(lambda a,b:a*b/(a*b+(1-a)*(1-b)),.5,{"domain": (.01,.99)}),
'bayes01':(lambda a,b:a*b/(a*b+(1-a)*(1-b)),None,{"domain": (1e-6,1-1e-6)}),
'tanh add':(lambda a,b:(a+b)/(1+a*b),0,{"lift": m.tanh,"domain": (-3,3)}),
'tanh add all':(lambda a,b:(a+b)/(1+a*b),0,{"lift": lambda x:x/(1+abs(x)),"domain": (-1000,1000)}),
'lse':(lambda a,b:mx(a,b)+m.log1p(m.exp(-abs(a-b))),None,{"domain": 'finite'}),
'lse cut40':(lambda a,b:mx(a,b)+w(abs(a-b)>40,0,m.log1p(m.exp(-abs(a-b)))),None,{"domain": 'finite'}),
'lse plain':(lambda a,b:m.log(m.exp(a)+m.exp(b)),None,{"domain": (-50,50)}),
'lse2':(lambda a,b:mx(a,b)+m.log2(1+m.exp2(-abs(a-b))),None,{"domain": 'finite'}),
'prob or':(lambda a,b:1-(1-a)*(1-b),0,{"domain": (0,1)}),
'fraction':(lambda a,b:(a.n*b.d+b.n*a.d,a.d*b.d),(0,1),of('n','d',lift=lambda x,y:(x,y),dtypes=torch.int64)),
'fraction f':(lambda a,b:(a.n*b.d+b.n*a.d,a.d*b.d),(0,1),of('n','d',lift=lambda x,y:(x,y),domain=(None,'positive'),project=lambda n,d:n/d)),
'adler':(lambda a,b:((a.s+b.s)%65521,(a.t+b.t+a.s*b.n)%65521,(a.n+b.n)%65521),(0,0,0),of('s','t','n',lift=lambda x:(x%65521,x%65521,1),dtypes=torch.int64)),
'changes':(lambda a,b:(a.first,b.last,a.c+b.c+w(a.last!=b.first,1,0)),None,of('first','last','c',lift=lambda x:(x,x,0))),
'sorted':(lambda a,b:(a.first,b.last,a.ok&b.ok&(a.last<=b.first)),None,of('first','last','ok',lift=lambda x:(x,x,True))),
'circle':(lambda a,b:(a+b)%6.283185307179586,0,{"lift": lambda x:x%6.283185307179586,"domain": 'finite'}),
'circle2':(lambda a,b:(a+b)%0.1,0,{"lift": lambda x:x%0.1,"domain": (-1e3,1e3)}),
'maxabs':(lambda a,b:w(abs(b)>abs(a),b,a),None,{}),
'minby':(lambda a,b:(mn(a.k,b.k),w(b.k<a.k,b.v,a.v)),None,of('k','v')),
'sat255':(lambda a,b:mn(a+b,255),0,{"lift": lambda x:mn(abs(x),255)}),
'sat0.3':(lambda a,b:mn(a+b,.3),0,{"domain": 'nonnegative',"lift": lambda x:mn(x,.3)}),
'sat int8':(lambda a,b:mn(a+b,100),0,{"lift": ones,"dtypes": torch.int32}),
'sum int8':(lambda a,b:a+b,0,{"dtypes": torch.int8}),
'maxprefix int8':(lambda a,b:(a.s+b.s,mx(a.m,a.s+b.m)),(0,0),of('s','m',lift=lambda x:(x,mx(x,0)),dtypes=torch.int64)),
'maxprefix int16':(lambda a,b:(a.s+b.s,mx(a.m,a.s+b.m)),(0,0),of('s','m',lift=lambda x:(x,mx(x,0)),dtypes=torch.int16)),
'maxprefix f':(lambda a,b:(a.s+b.s,mx(a.m,a.s+b.m)),(0,0),of('s','m',lift=lambda x:(x,mx(x,0)))),
'parallel':(lambda a,b:1/(1/a+1/b),INF,{"domain": 'positive'}),
'harm':(lambda a,b:a*b/(a+b),None,{"domain": 'positive'}),
'geo':(lambda a,b:m.exp(m.log(a)+m.log(b)),1,{"domain": 'positive'}),
'p3':(lambda a,b:(a**3+b**3)**(1/3),0,{"domain": (0,100)}),
'lin':(lambda a,b:a+b+a*b,0,{"domain": (-.9,10)}),
'lin2':(lambda a,b:a+b+0.5*a*b,0,{}),
'a+b-1':(lambda a,b:a+b-1,1,{}),
'ab/c':(lambda a,b:a*b/7.3,7.3,{}),
'2x2':(lambda p,q:(p.a*q.a+p.b*q.c,p.a*q.b+p.b*q.d,p.c*q.a+p.d*q.c,p.c*q.b+p.d*q.d),(1,0,0,1),of('a','b','c','d')),
'rot norm':(lambda a,b:((a.c*b.c-a.s*b.s)/m.sqrt((a.c*b.c-a.s*b.s)**2+(a.s*b.c+a.c*b.s)**2),(a.s*b.c+a.c*b.s)/m.sqrt((a.c*b.c-a.s*b.s)**2+(a.s*b.c+a.c*b.s)**2)),None,of('c','s',lift=lambda x:(m.cos(x),m.sin(x)),domain=(-10,10))),
'xorshift':(lambda a,b:a^b,0,{"lift": lambda x:(x*2654435761)^(x<<7),"dtypes": torch.int64}),
'poly wrap':(lambda a,b:(a.h*b.p+b.h,a.p*b.p),(0,1),of('h','p',lift=lambda x:(x,31),dtypes=torch.int64)),
'poly wrap default':(lambda a,b:(a.h*b.p+b.h,a.p*b.p),(0,1),of('h','p',lift=lambda x:(x,31))),
'poly wrap u64':(lambda a,b:(a.h*b.p+b.h,a.p*b.p),(0,1),of('h','p',lift=lambda x:(x,31),dtypes=torch.uint64)),
'last>1e5':(lambda a,b:w(b>1e5,b,a),0,{"lift": lambda x:w(x>1e5,x,0)}),
'gap carry':(lambda a,b:(a.s*m.exp2(a.last-b.last)+b.s,b.last),None,of('s','last',lift=lambda x,i:(x,i),index=True,dtypes=torch.float64)),
'first idx above':(lambda a,b:mn(a,b),INF,{"lift": lambda x,i:w(x>3,i,INF),"index": True,"dtypes": 'index'}),
'range':(lambda a,b:(a.lo,b.hi),None,of('lo','hi',lift=lambda x,i:(i,i),index=True)),
'dist':(lambda a,b:(a.d+b.d+abs(b.f-a.l),a.f,b.l),None,of('d','f','l',lift=lambda x:(0*x,x,x))),
'trapz':(lambda a,b:(a.s+b.s+(b.y0+a.y1)*(b.x0-a.x1)/2,a.x0,a.y0,b.x1,b.y1),None,of('s','x0','y0','x1','y1',lift=lambda x,y:(0.*x,x,y,x,y),domain='finite')),
'inf sentinel':(lambda a,b:mx(a,b),-1e9,{"domain": (-1e8,1e8)}),
'log1p':(lambda a,b:m.expm1(m.log1p(a)+m.log1p(b)),0,{"domain": (-.5,5)}),
'sigmoid or':(lambda a,b:m.log(m.exp(a)+m.exp(b)+m.exp(a+b)),-INF,{"domain": (-30,30)}),
'erf':(lambda a,b:a+b,0,{"lift": m.erf}),
'count distinct sorted':(lambda a,b:(a.f,b.l,a.n+b.n-w(a.l==b.f,1,0)),None,of('f','l','n',lift=lambda x:(x,x,1))),
'tuple mix':(lambda a,b:(a.x+b.x,mx(a.y,b.y),a.z|b.z),(0,-INF,False),of('x','y','z',lift=lambda x:(x,x*.1,x>2))),
'sign mag':(lambda a,b:(a.s*b.s,a.l+b.l),(1,0),of('s','l',lift=lambda x:(w(x<0,-1,1),m.log(abs(x))),domain=(None,-1e-3))),
'square':(lambda a,b:a+b+2*m.sqrt(a*b),0,{"domain": 'nonnegative'}),
'square lim':(lambda a,b:a+b+2*m.sqrt(a*b),0,{"domain": (0,1e4)}),
'floor lift':(lambda a,b:a+b,0,{"lift": lambda x:m.floor(x*.3)}),
'whole floor':(lambda a,b:m.floor(a+b),0,{"lift": m.floor}),
'whole floor2':(lambda a,b:m.floor((a+b)*4)/4,0,{"lift": lambda x:m.floor(x*4)/4}),
'mod int':(lambda a,b:(a+b)%1000003,0,{"lift": lambda x:x%1000003,"dtypes": torch.int64}),
'top2':(lambda a,b:(mx(a.f,b.f),mx(mn(a.f,b.f),mx(a.s,b.s))),(-INF,-INF),of('f','s',lift=lambda x:(x,-INF))),
'relativ c':(lambda a,b:(a+b)/(1+a*b/9e16),0,{"domain": (-2.9e8,2.9e8)}),
'sat offset':(lambda a,b:w(a+b>=100,100,a+b),0,{"lift": lambda x:w(x>0,3,0)}),
'ema':(lambda f,g:(f.k*g.k,g.k*f.v+g.v),(1,0),of('k','v',lift=lambda x:(.9,.1*x))),
}
