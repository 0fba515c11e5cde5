// LLMPerf's own kernels: inputs, cache flush, digests, and the loads that measure a device.
// The fill kernels compute what workers/plan/inputs.py describes, bit for bit.

uint mix32(uint v)
{
    v ^= v >> 16;
    v *= 0x85EBCA6Bu;
    v ^= v >> 13;
    v *= 0xC2B2AE35u;
    return v ^ (v >> 16);
}

uint hashed(ulong i, uint key)
{
    return mix32((uint)i * 0x9E3779B9u + (key ^ ((uint)(i >> 32) * 0xC2B2AE35u)));
}

// Index of scalar i of a structure's member, which has `count` scalars from `offset` on in each
// structure of `stride` scalars.
#define LEAF_PLACE (i / count * stride + offset + i % count)

// NAME writes n scalars and `zeros` zeros behind them; NAME_leaf writes a member of n / count
// structures.
#define FILL_AS(NAME, TYPE, EXPRESSION)                                         \
    __kernel void NAME(__global TYPE *out, ulong n, uint key, ulong limit,      \
                       ulong zeros)                                             \
    {                                                                           \
        ulong i = get_global_id(0);                                             \
        if (i < n) {                                                            \
            uint bits = hashed(i, key);                                         \
            out[i] = EXPRESSION;                                                \
        } else if (i < n + zeros) {                                             \
            out[i] = 0;                                                         \
        }                                                                       \
    }                                                                           \
    __kernel void NAME##_leaf(__global TYPE *out, ulong n, uint key,            \
                              ulong limit, ulong offset, ulong stride,          \
                              ulong count)                                      \
    {                                                                           \
        ulong i = get_global_id(0);                                             \
        if (i < n) {                                                            \
            uint bits = hashed(i, key);                                         \
            out[LEAF_PLACE] = EXPRESSION;                                       \
        }                                                                       \
    }
#define FILL(KIND, TYPE, EXPRESSION) FILL_AS(fill_##KIND, TYPE, EXPRESSION)
#define FILL_INTEGERS(KIND, TYPE)                                               \
    FILL_AS(fill_##KIND, TYPE, (TYPE)(bits >> 28))                              \
    FILL_AS(bounded_##KIND, TYPE, (TYPE)below_limit(bits, limit))               \
    FILL_AS(prefix_##KIND, TYPE, (TYPE)prefix_value(i, n, bits, limit))

// Returns a value between floor(i * limit / n) and floor((i + 1) * limit / n), so that values
// never decrease.
ulong prefix_value(ulong i, ulong n, uint bits, ulong limit)
{
    ulong low = i * limit / n;
    ulong high = (i + 1) * limit / n;
    return low + (((ulong)bits * (high - low)) >> 32);
}

// Returns 1/2 plus a number below 3/2 that all but two of the `used` leading bits give; the first
// bit is the sign.
long signed_steps(uint bits, uint used)
{
    ulong drawn = bits >> (32 - used), fraction = drawn & ((1ul << (used - 2)) - 1);
    long steps = (long)((fraction * 3 >> 1) + (1ul << (used - 3)));
    return drawn >> (used - 1) ? -steps : steps;
}

ulong below_limit(uint bits, ulong limit)
{
    return ((ulong)bits * limit) >> 32;
}

#define FILL_FLOATS(KIND, TYPE, EXPRESSION, USED, STEP)                         \
    FILL_AS(fill_##KIND, TYPE, EXPRESSION)                                      \
    FILL_AS(flags_##KIND, TYPE, (TYPE)below_limit(bits, limit))                 \
    FILL_AS(signed_##KIND, TYPE, (TYPE)signed_steps(bits, USED) * STEP)

FILL_FLOATS(float32, float, (float)(bits >> 8) * 0x1.0p-24f, 24, 0x1.0p-22f)
FILL(bool, uchar, (uchar)(bits >> 31))
FILL_INTEGERS(int8, uchar)
FILL_INTEGERS(int16, ushort)
FILL_INTEGERS(int32, uint)
FILL_INTEGERS(int64, ulong)

// vstore_half needs no cl_khr_fp16. The 11 bits fit a half's significand, so nothing is rounded.
#define FILL_HALVES(NAME, EXPRESSION)                                           \
    __kernel void NAME##_float16(__global half *out, ulong n, uint key,         \
                                 ulong limit, ulong zeros)                      \
    {                                                                           \
        ulong i = get_global_id(0);                                             \
        uint bits = hashed(i, key);                                             \
        if (i < n)                                                              \
            vstore_half(EXPRESSION, i, out);                                    \
        else if (i < n + zeros)                                                 \
            vstore_half(0.0f, i, out);                                          \
    }                                                                           \
    __kernel void NAME##_float16_leaf(__global half *out, ulong n, uint key,    \
                                      ulong limit, ulong offset, ulong stride,  \
                                      ulong count)                              \
    {                                                                           \
        ulong i = get_global_id(0);                                             \
        uint bits = hashed(i, key);                                             \
        if (i < n)                                                              \
            vstore_half(EXPRESSION, LEAF_PLACE, out);                           \
    }

FILL_HALVES(fill, (float)(bits >> 21) * 0x1.0p-11f)
FILL_HALVES(flags, (float)below_limit(bits, limit))
FILL_HALVES(signed, (float)signed_steps(bits, 11) * 0x1.0p-9f)

// Writes `n` quads of words. The words differ in each call, because a memory may compress
// constants. Each work-item writes one quad. This takes 5 ms for 64 MiB on a 2-core CPU; a strided
// loop took 75 ms.
__kernel void flush(__global uint4 *out, ulong n, uint key)
{
    ulong i = get_global_id(0);
    if (i < n)
        out[i] = (uint4)((uint)i ^ key);
}

// Writes `value`, a byte repeated four times, to n bytes from `start` on, 16 aligned bytes at once.
__kernel void set_bytes(__global uchar *out, ulong start, ulong n, uint value)
{
    ulong i = (ulong)get_global_id(0) * 16;
    if (i >= n)
        return;
    __global uchar *at = out + start + i;
    if (((start + i) & 15) == 0 && n - i >= 16) {
        *(__global uint4 *)at = (uint4)value;
    } else {
        for (ulong k = 0; k < min(n - i, (ulong)16); k++)
            at[k] = (uchar)value;
    }
}

// Computes two sums of hashed words. The sums do not depend on the order of the work-items.
__kernel void digest(__global const uint *words, ulong n, __global uint *sums)
{
    uint a = 0, b = 0;
    for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) {
        uint h = mix32(words[i] + mix32((uint)i * 0x9E3779B9u + (uint)(i >> 32)));
        a += h;
        b += mix32(h ^ 0x5BD1E995u);
    }
    atomic_add(&sums[0], a);
    atomic_add(&sums[1], b);
}

__kernel void empty_launch(__global uint *out)
{
    if (get_global_size(0) == 0)
        out[0] = 1;
}

__kernel void triad(__global const float4 *a, __global const float4 *b, __global float4 *c, ulong n)
{
    ulong i = get_global_id(0);
    if (i < n)
        c[i] = a[i] + 3.0f * b[i];
}

// Eight independent chains of four lanes: 64 FLOP per iteration, enough to hide the latency of an
// FMA. Written as a * m + k, which OpenCL may contract: PoCL's fma() is a call for each lane and 25
// times slower.
#define FMA_CHAIN(NAME, SCALAR, VECTOR)                                         \
    __kernel void NAME(__global SCALAR *out, uint turns, SCALAR x, SCALAR y)    \
    {                                                                           \
        VECTOR s = (VECTOR)((SCALAR)get_global_id(0));                          \
        VECTOR a0 = s, a1 = s + 1, a2 = s + 2, a3 = s + 3;                      \
        VECTOR a4 = s + 4, a5 = s + 5, a6 = s + 6, a7 = s + 7;                  \
        VECTOR m = (VECTOR)(x), k = (VECTOR)(y);                                \
        for (uint t = 0; t < turns; ++t) {                                      \
            a0 = a0 * m + k; a1 = a1 * m + k;                             \
            a2 = a2 * m + k; a3 = a3 * m + k;                             \
            a4 = a4 * m + k; a5 = a5 * m + k;                             \
            a6 = a6 * m + k; a7 = a7 * m + k;                             \
        }                                                                       \
        VECTOR r = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7;                       \
        out[get_global_id(0)] = r.x + r.y + r.z + r.w;                          \
    }

FMA_CHAIN(fma_float32, float, float4)

// Always does the same work, so its time changes only if the device's state does.
__kernel void sentinel(__global const float *in, __global float *out, uint turns)
{
    uint i = (uint)get_global_id(0);
    float x = in[i], y = 0.5f;
    for (uint t = 0; t < turns; ++t)
        y = y * x + 0.25f;
    out[i] = y;
}

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
FILL_FLOATS(float64, double, (double)bits * 0x1.0p-32, 32, 0x1.0p-30)
FMA_CHAIN(fma_float64, double, double4)
#endif

// Uses 2 KiB of private memory per work-item, which no optimiser can remove. Once a context has
// allocated that much, later kernels that need as much do not wait for the allocation.
__kernel void deep(__global uint *out, uint turns)
{
    uint values[512];
    for (uint i = 0; i < 512; i++)
        values[i] = mix32(i + turns);
    uint at = turns;
    for (uint i = 0; i < turns; i++)
        at = values[at & 511] + i;
    out[get_global_id(0)] = at;
}
