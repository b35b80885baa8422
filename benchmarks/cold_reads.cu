// Read n vectors of 16 bytes once, in whichever way is fastest; add them up, so that nothing can be left out.
//
// THREADS, LOADS   threads a CTA, vectors on their way a thread
// POLICY           how lines that were read are kept in the L2: undefined (as usual), "evict_first" or "evict_unchanged"
// BULK             CHUNK bytes at a time by the bulk copy engine, STAGES chunks on their way a CTA
// One sum a warp is written. Memory is read in launch order; a grid of fewer CTAs walks on in strides.

using word = unsigned int;
using address = unsigned long long;

__device__ float added(uint4 v) {
  return __uint_as_float(v.x) + __uint_as_float(v.y) + __uint_as_float(v.z) + __uint_as_float(v.w);
}

__device__ void write_sum(float* sums, float sum) {
  for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
  if (threadIdx.x % 32 == 0) sums[blockIdx.x * (THREADS / 32) + threadIdx.x / 32] = sum;
}

#ifndef BULK

__device__ uint4 loaded(const uint4* place, address policy) {
  uint4 v;
#ifdef POLICY
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(place), "l"(policy));
#else
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(place));
#endif
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) read(const uint4* x, float* sums, long long n) {
  address policy = 0;
#ifdef POLICY
  asm volatile("createpolicy.fractional.L2::" POLICY ".b64 %0, 1.0;" : "=l"(policy));
#endif
  constexpr long long TILE = THREADS * LOADS;
  float sum = 0;
  for (long long at = blockIdx.x * TILE + threadIdx.x; at < n; at += gridDim.x * TILE) {
    uint4 v[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) v[i] = loaded(x + at + i * THREADS, policy);
#pragma unroll
    for (int i = 0; i < LOADS; i++) sum += added(v[i]);
  }
  write_sum(sums, sum);
}

#else

extern "C" __global__ void __launch_bounds__(THREADS) read(const char* x, float* sums, long long n) {
  extern __shared__ __align__(128) char ring[];
  __shared__ address arrived[STAGES];
  word ring_at = __cvta_generic_to_shared(ring), arrived_at = __cvta_generic_to_shared(arrived);
  address policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  long long chunks = n * 16 / CHUNK, mine = (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
  auto ask = [&](long long turn) {
    word stage = turn % STAGES, barrier = arrived_at + 8 * stage;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(word(CHUNK)));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(ring_at + stage * CHUNK), "l"(x + (blockIdx.x + turn * gridDim.x) * CHUNK), "r"(word(CHUNK)),
                 "r"(barrier), "l"(policy) : "memory");
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(arrived_at + 8 * i));
    asm volatile("fence.mbarrier_init.release.cluster;");
    for (long long turn = 0; turn < STAGES && turn < mine; turn++) ask(turn);
  }
  __syncthreads();
  float sum = 0;
  for (long long turn = 0; turn < mine; turn++) {
    word stage = turn % STAGES, parity = (turn / STAGES) & 1, there = 0;
    while (!there)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(there) : "r"(arrived_at + 8 * stage), "r"(parity));
    const uint4* chunk = reinterpret_cast<const uint4*>(ring + stage * CHUNK);
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK / 16; i += THREADS) sum += added(chunk[i]);
    if (turn + STAGES < mine) {
      __syncthreads();
      if (threadIdx.x == 0) ask(turn + STAGES);
    }
  }
  write_sum(sums, sum);
}

#endif
