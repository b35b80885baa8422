// relu(a @ b) in one launch: a cluster of CLUSTER CTAs shares the K of a tile and meets in distributed shared memory.
//
//   a [M, K], b [K, N], c [M, N], bfloat16, row-major, K a multiple of 64, N of 8; sums in float32
//
// A warp owns a share of K and a pipeline of its own: STAGES steps of 64 on their way through shared memory (cp.async,
// ldmatrix, mma.sync), the whole BM x BN tile in its registers. A CTA of the cluster owns TILE / CLUSTER results: every
// warp (with FOLD_FIRST: every CTA, its warps folded before) pushes its sums of them into that CTA's shared memory, one
// barrier of the cluster later the owner folds what it received in a fixed order, and finishes.
//
// With more clusters than tiles several share a tile: their sums go to global memory, and the last of them, known by
// a counter for each owner, folds them in a fixed order and leaves the counter at 0 again.
//
// BM, BN, WARPS, STAGES, CLUSTER, FOLD_FIRST and CHAINED are given by whoever compiles this.

typedef unsigned int u32;
typedef unsigned short u16;

constexpr int STEP = 64;  // of K
constexpr int THREADS = 32 * WARPS;
constexpr int A_BYTES = BM * STEP * 2, B_BYTES = STEP * BN * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int TILE = BM * BN, SHARE = TILE / CLUSTER;
constexpr int SOURCES = FOLD_FIRST ? CLUSTER : CLUSTER * WARPS;
constexpr int TILE_BYTES = FOLD_FIRST ? TILE * 4 : 0;
constexpr int WARP_BYTES = STAGES * STAGE_BYTES > TILE_BYTES ? STAGES * STAGE_BYTES : TILE_BYTES;
static_assert(SHARE % 4 == 0 && TILE % CLUSTER == 0, "an owner has whole vectors of four");

__host__ __device__ constexpr int lanes_of_a_result() {  // threads that fold one result together
    int lanes = 1;
    while (2 * lanes <= 32 && 2 * lanes <= SOURCES && 2 * lanes * SHARE <= THREADS) lanes *= 2;
    return lanes;
}
constexpr int LANES = lanes_of_a_result();

// ---------------------------------------------------------------------------------------------------- instructions

__device__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ void copy_chunk(u32 to, const u16 *from, bool valid) {  // 16 bytes, zeros where there is nothing
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

__device__ void load_a(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ void load_b(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
__device__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ u16 to_bfloat16(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

__device__ u16 finished(float x) { return to_bfloat16(x < 0.0f ? 0.0f : x); }  // ReLU, which keeps NaN

// A CTA's shared memory as another CTA of its cluster sees it, and the cluster's barrier; both nothing where it is alone.
#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
__device__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ u32 in_cta(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ void push(u32 to, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ void push(u32 to, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#else
#define CLUSTERED
__device__ u32 rank_in_cluster() { return 0; }
__device__ u32 in_cta(u32 address, u32) { return address; }
__device__ void push(u32 to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ void push(u32 to, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ void arrive() {}
__device__ void wait() { __syncthreads(); }
#endif

// ----------------------------------------------------------------------------------------------------- a warp's part

// Chunks of 16 bytes are stored so that the eight of one ldmatrix lie in eight banks of 16 bytes.
template <int MASK> __device__ int swizzled(int chunk) { return (chunk ^ (chunk >> 3 & MASK)) * 16; }
constexpr int A_MASK = 7, B_MASK = BN / 8 - 1;

__device__ void fetch(u32 stage, const u16 *a, const u16 *b, int m0, int n0, int k0, int M, int N, int K, int lane) {
#pragma unroll
    for (int i = 0; i < BM / 4; i++) {
        int chunk = i * 32 + lane, row = chunk / 8;
        bool valid = m0 + row < M;
        copy_chunk(stage + swizzled<A_MASK>(chunk), a + (valid ? (long long)(m0 + row) * K + k0 + chunk % 8 * 8 : 0), valid);
    }
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
        int chunk = i * 32 + lane, row = chunk / (BN / 8), column = n0 + chunk % (BN / 8) * 8;
        bool valid = column < N;
        copy_chunk(stage + A_BYTES + swizzled<B_MASK>(chunk), b + (valid ? (long long)(k0 + row) * N + column : 0), valid);
    }
}

__device__ void multiply_step(float (&sums)[BM / 16][BN / 8][4], u32 stage, int lane) {
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        u32 left[BM / 16][4];
#pragma unroll
        for (int m = 0; m < BM / 16; m++) load_a(left[m], stage + swizzled<A_MASK>((m * 16 + lane % 16) * 8 + k * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < BN / 16; n++) {
            u32 right[4];
            load_b(right, stage + A_BYTES + swizzled<B_MASK>((k * 16 + lane % 16) * (BN / 8) + n * 2 + lane / 16));
#pragma unroll
            for (int m = 0; m < BM / 16; m++) {
                multiply(sums[m][2 * n], left[m], right[0], right[1]);
                multiply(sums[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------- the kernel

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS)
cluster_products(const u16 *a, const u16 *b, u16 *c, float *partials, u32 *counters, int M, int N, int K, int clusters) {
    extern __shared__ __align__(128) unsigned char memory[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = rank_in_cluster();
    int across = (N + BN - 1) / BN, tiles = (M + BM - 1) / BM * across;
    int tile = blockIdx.x / CLUSTER % tiles, cluster = blockIdx.x / CLUSTER / tiles;
    int m0 = tile / across * BM, n0 = tile % across * BN;
    u32 stages = shared_address(memory + warp * WARP_BYTES);
    float *received = (float *)(memory + WARPS * WARP_BYTES);  // [SOURCES][SHARE]
    arrive();  // a peer may push only after this CTA has begun

#if CHAINED
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    int worker = (cluster * CLUSTER + rank) * WARPS + warp, workers = clusters * CLUSTER * WARPS, steps = K / STEP;
    int first = (int)((long long)steps * worker / workers), last = (int)((long long)steps * (worker + 1) / workers);
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
        if (first + s < last) fetch(stages + s * STAGE_BYTES, a, b, m0, n0, (first + s) * STEP, M, N, K, lane);
        commit_copies();
    }
    float sums[BM / 16][BN / 8][4] = {};
    for (int step = first, stage = 0; step < last; step++, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        wait_copies<STAGES - 1>();
        __syncwarp();
        multiply_step(sums, stages + stage * STAGE_BYTES, lane);
        __syncwarp();
        if (step + STAGES < last) fetch(stages + stage * STAGE_BYTES, a, b, m0, n0, (step + STAGES) * STEP, M, N, K, lane);
        commit_copies();
    }

    // Sums go to their owners. A lane holds results (row, column .. column + 1) and the same eight rows below.
    u32 begin = shared_address(received);
#pragma unroll
    for (int m = 0; m < BM / 16; m++)
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int x = (m * 16 + lane / 4 + 8 * half) * BN + n * 8 + lane % 4 * 2;
                float *of = &sums[m][n][2 * half];
#if FOLD_FIRST
                ((float2 *)(memory + warp * WARP_BYTES))[x / 2] = make_float2(of[0], of[1]);
#else
                if (m == 0 && n == 0 && half == 0) wait();
                push(in_cta(begin + ((rank * WARPS + warp) * SHARE + x % SHARE) * 4, x / SHARE), of[0], of[1]);
#endif
            }
#if FOLD_FIRST
    __syncthreads();
    wait();
    for (int x = threadIdx.x * 4; x < TILE; x += THREADS * 4) {
        float4 v = *(float4 *)(memory + x * 4);
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            float4 more = *(float4 *)(memory + w * WARP_BYTES + x * 4);
            v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
        }
        push(in_cta(begin + (rank * SHARE + x % SHARE) * 4, x / SHARE), v);
    }
#endif
    arrive();
    wait();

    // The owner folds what it received: LANES lanes a result, each its sources one after another, then a tree.
    float *own = partials + ((long long)cluster * tiles + tile) * TILE + rank * SHARE;
    for (int from = 0; from < SHARE; from += THREADS / LANES) {
        int x = from + threadIdx.x / LANES;
        float v = 0;
        if (x < SHARE)
            for (int s = threadIdx.x % LANES; s < SOURCES; s += LANES) v += received[s * SHARE + x];
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) v += __shfl_xor_sync(~0u, v, lanes);
        if (x >= SHARE || threadIdx.x % LANES != 0) continue;
        int m = m0 + (rank * SHARE + x) / BN, n = n0 + (rank * SHARE + x) % BN;
        if (clusters > 1) own[x] = v;
        else if (m < M && n < N) c[(long long)m * N + n] = finished(v);
    }
    if (clusters == 1) return;

    // Several clusters share the tile: the last one's owner folds their sums of its results, in the clusters' order.
    __shared__ bool finishes;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) finishes = atomicAdd(&counters[tile * CLUSTER + rank], 1) == clusters - 1;
    __syncthreads();
    if (!finishes) return;
    __threadfence();
    for (int x = threadIdx.x; x < SHARE; x += THREADS) {
        float v = 0;
        for (int z = 0; z < clusters; z++)
            v += __ldcg(partials + ((long long)z * tiles + tile) * TILE + rank * SHARE + x);
        int m = m0 + (rank * SHARE + x) / BN, n = n0 + (rank * SHARE + x) % BN;
        if (m < M && n < N) c[(long long)m * N + n] = finished(v);
    }
    if (threadIdx.x == 0) counters[tile * CLUSTER + rank] = 0;
}
