/* Residual add and RMSNorm of an all-reduce's result, in the same launch. For every row of `norm_row` elements:
 *
 *   h      = round(sum + residual)          the new residual, in the residual's place
 *   scale  = 1 / sqrt(mean of h * h + eps)
 *   output = round(h * scale * weight)
 *
 * `sum` is what the operation alone would have given, round() goes to the dtype, all else is fp32 with one rounding a
 * step. The squares are added in an order that depends on nothing but the row: pack i (16 bytes of elements) belongs to
 * lane i % 512, a lane adds its elements in order, and lanes are added in pairs, first 16, 8, 4, 2, 1 apart within each
 * 32, then the 16 totals 8, 4, 2, 1 apart. So all ranks, all grids, GPU and CPU have the same bits.
 */
#ifndef ROCE_RING_NORM_CUH
#define ROCE_RING_NORM_CUH

#include "collective.cuh"

#define RR_NORM_LANES 512u
#define RR_NORM_GROUPS (RR_NORM_LANES / 32)

RR_FN float rr_norm_scale(const rr_op *op, float squares) {
    return rr_quotient(1.0f, rr_root(rr_quotient(squares, (float)op->norm_row) + op->norm_eps));
}

/* One lane of a row: the new residual, and the sum of its squares. */
template <typename T> RR_FN float rr_norm_add(const rr_op *op, uint64_t row, uint32_t lane) {
    const uint32_t N = 16 / sizeof(T);
    const uint8_t *sum = (const uint8_t *)op->out + row * op->norm_row * sizeof(T);
    uint8_t *residual = (uint8_t *)op->norm_residual + row * op->norm_row * sizeof(T);
    float squares = 0;
    for (uint64_t i = lane * N; i < op->norm_row; i += RR_NORM_LANES * N) {
        uint32_t n = op->norm_row - i < N ? (uint32_t)(op->norm_row - i) : N;
        float h[N] = {}, r[N] = {};
        rr_load_from<T>(sum + i * sizeof(T), h, n);
        rr_load_from<T>(residual + i * sizeof(T), r, n);
        for (uint32_t k = 0; k < N; k++) h[k] = rr_rounded<T>(h[k] + r[k]);
        rr_store_to<T>(residual + i * sizeof(T), h, n);
        for (uint32_t k = 0; k < N; k++) squares += rr_square(h[k]); /* beyond n: + 0 */
    }
    return squares;
}

/* The same lane's output. Reads only what the same thread has written. */
template <typename T> RR_FN void rr_norm_scaled(const rr_op *op, uint64_t row, uint32_t lane, float scale) {
    const uint32_t N = 16 / sizeof(T);
    uint8_t *out = (uint8_t *)op->out + row * op->norm_row * sizeof(T);
    const uint8_t *residual = (const uint8_t *)op->norm_residual + row * op->norm_row * sizeof(T);
    for (uint64_t i = lane * N; i < op->norm_row; i += RR_NORM_LANES * N) {
        uint32_t n = op->norm_row - i < N ? (uint32_t)(op->norm_row - i) : N;
        float h[N] = {}, w[N] = {};
        rr_load_from<T>((const uint8_t *)op->norm_weight + i * sizeof(T), w, n);
        rr_load_from<T>(residual + i * sizeof(T), h, n);
        for (uint32_t k = 0; k < N; k++) h[k] = h[k] * scale * w[k];
        rr_store_to<T>(out + i * sizeof(T), h, n);
    }
}

/* GPU: a row at a time for each block. CPU: for each thread. */
#if RR_GPU
/* Of 16 totals, one in each lane of half a warp: to every lane what rr_norm_scale does with them. */
RR_FN float rr_norm_scale_of(const rr_op *op, float total) {
    for (uint32_t apart = RR_NORM_GROUPS / 2; apart; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
    return rr_norm_scale(op, total);
}

/* Rows of whole packs on 16-byte edges, as models have them: each thread keeps up to this many packs, of one row or of
 * several, so that their loads are on their way together and nothing is read twice. */
#define RR_NORM_PACKS 4u

/* `turns`: packs of a row that one thread has. */
template <typename T> RR_FN void rr_norm_packed(const rr_ctx &c, uint32_t turns) {
    const uint32_t N = rr_tile_of<T>::count;
    __shared__ float total[2][RR_NORM_PACKS][RR_NORM_GROUPS]; /* in turns: a fast warp is one batch ahead at most */
    const rr_op *op = c.op;
    uint32_t rows = (uint32_t)(op->count / op->norm_row), packs = (uint32_t)(op->norm_row / N), buffer = 0;
    uint32_t share = (rows + c.blocks - 1) / c.blocks, most = RR_NORM_PACKS / turns,
             batch = share < most ? share : most;
    for (uint32_t first = c.block * batch; first < rows; first += c.blocks * batch, buffer ^= 1) {
        rr_pack h[RR_NORM_PACKS], other[RR_NORM_PACKS]; /* other: the residual, then the weights */
        uint64_t at[RR_NORM_PACKS];
        bool mine[RR_NORM_PACKS];
#pragma unroll
        for (uint32_t p = 0; p < RR_NORM_PACKS; p++) {
            uint32_t row = first + p / turns, pack = p % turns * RR_NORM_LANES + c.tid;
            mine[p] = p / turns < batch && row < rows && pack < packs;
            at[p] = ((uint64_t)row * packs + pack) * RR_PACK_BYTES;
            if (!mine[p]) continue;
            h[p] = rr_load_pack((const uint8_t *)op->out + at[p]);
            other[p] = rr_load_pack((const uint8_t *)op->norm_residual + at[p]);
        }
        float squares = 0;
#pragma unroll
        for (uint32_t p = 0; p < RR_NORM_PACKS; p++) {
            if (p % turns == 0) squares = 0;
            if (mine[p]) {
                float v[N], r[N];
                rr_unpack<T>(v, h[p]);
                rr_unpack<T>(r, other[p]);
#pragma unroll
                for (uint32_t k = 0; k < N; k++) {
                    rr_from_float(v[k] + r[k], &((T *)&h[p])[k]);
                    squares += rr_square(rr_to_float(((T *)&h[p])[k]));
                }
                rr_store_pack((uint8_t *)op->norm_residual + at[p], h[p]);
                other[p] = rr_load_pack((const uint8_t *)op->norm_weight +
                                        (p % turns * RR_NORM_LANES + c.tid) * (uint64_t)RR_PACK_BYTES);
            }
            if (p % turns < turns - 1 || p / turns >= batch) continue;
            float sum = squares;
            for (uint32_t apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            if (c.tid % 32 == 0) total[buffer][p / turns][c.tid / 32] = sum;
        }
        rr_block_sync(c);
#pragma unroll
        for (uint32_t p = 0; p < RR_NORM_PACKS; p++) {
            if (p / turns >= batch) continue;
            float scale = rr_norm_scale_of(op, total[buffer][p / turns][c.tid % RR_NORM_GROUPS]);
            if (!mine[p]) continue;
            float v[N], w[N];
            rr_unpack<T>(v, h[p]);
            rr_unpack<T>(w, other[p]);
#pragma unroll
            for (uint32_t k = 0; k < N; k++) v[k] = v[k] * scale * w[k];
            rr_store_tile((T *)(op->out + at[p]), v, N);
        }
    }
}

template <typename T> RR_FN void rr_norm_rows(const rr_ctx &c) {
    const uint32_t N = rr_tile_of<T>::count;
    const rr_op *op = c.op;
    uint64_t edges = op->out | op->norm_residual | op->norm_weight | op->norm_row * sizeof(T);
    uint64_t turns = (op->norm_row / N + RR_NORM_LANES - 1) / RR_NORM_LANES;
    if (edges % RR_PACK_BYTES == 0 && turns <= RR_NORM_PACKS && c.threads == RR_NORM_LANES) {
        rr_norm_packed<T>(c, (uint32_t)turns);
        return;
    }
    __shared__ float total[RR_NORM_GROUPS];
    for (uint64_t row = c.block; row < op->count / op->norm_row; row += c.blocks) {
        for (uint32_t lane = c.tid; lane < RR_NORM_LANES; lane += c.threads) { /* whole warps */
            float squares = rr_norm_add<T>(op, row, lane);
            for (uint32_t apart = 16; apart; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
            if (lane % 32 == 0) total[lane / 32] = squares;
        }
        rr_block_sync(c);
        float scale = rr_norm_scale_of(op, total[c.tid % RR_NORM_GROUPS]);
        for (uint32_t lane = c.tid; lane < RR_NORM_LANES; lane += c.threads) rr_norm_scaled<T>(op, row, lane, scale);
        rr_block_sync(c); /* all have read `total` */
    }
}
#else
/* v[0] becomes the sum of all: `count` is a power of two. */
RR_FN void rr_add_pairs(float *v, uint32_t count) {
    for (uint32_t apart = count / 2; apart; apart /= 2)
        for (uint32_t i = 0; i < apart; i++) v[i] += v[i + apart];
}

template <typename T> RR_FN void rr_norm_rows(const rr_ctx &c) {
    uint64_t all = (uint64_t)c.blocks * c.threads;
    for (uint64_t row = (uint64_t)c.block * c.threads + c.tid; row < c.op->count / c.op->norm_row; row += all) {
        float lanes[RR_NORM_LANES], groups[RR_NORM_GROUPS];
        for (uint32_t lane = 0; lane < RR_NORM_LANES; lane++) lanes[lane] = rr_norm_add<T>(c.op, row, lane);
        for (uint32_t g = 0; g < RR_NORM_GROUPS; g++) {
            rr_add_pairs(lanes + g * 32, 32);
            groups[g] = lanes[g * 32];
        }
        rr_add_pairs(groups, RR_NORM_GROUPS);
        float scale = rr_norm_scale(c.op, groups[0]);
        for (uint32_t lane = 0; lane < RR_NORM_LANES; lane++) rr_norm_scaled<T>(c.op, row, lane, scale);
    }
}
#endif

/* After the last wait of an all-reduce. Rows belong to blocks, and any block may have written the sums of a row, so all
 * blocks meet first. Observers: every thread (`arrived`, block 0, `ready`) -> every thread. */
template <typename T> RR_FN void rr_norm(rr_ctx &c) {
    if (!c.op->norm_row || c.failed) return;
    if (c.blocks == 1)
        rr_block_sync(c);
    else if (!rr_blocks_meet(c))
        return;
    rr_norm_rows<T>(c);
}

#endif
