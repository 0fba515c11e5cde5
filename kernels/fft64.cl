// Fourier transforms of 64 complex points, one transform a work-group: six butterfly stages in
// local memory after a load in bit-reversed order.
// In the set for butterflies (a partner that changes with the stage) and sine and cosine twiddles.
#define POINTS 64
#define BITS 6

uint reverse_bits(uint value)
{
    uint reversed = 0u;
    for (uint bit = 0u; bit < BITS; ++bit)
        reversed |= ((value >> bit) & 1u) << (BITS - 1u - bit);
    return reversed;
}

__kernel __attribute__((reqd_work_group_size(POINTS, 1, 1)))
void fft64(__global const float2 *signal, __global float2 *spectrum)
{
    __local float2 points[POINTS];
    uint lane = get_local_id(0);
    uint base = get_group_id(0) * POINTS;
    points[lane] = signal[base + reverse_bits(lane)];
    for (uint gap = 1u; gap < POINTS; gap *= 2u) {
        barrier(CLK_LOCAL_MEM_FENCE);
        float2 even = points[lane & ~gap];
        float2 odd = points[lane | gap];
        float cosine;
        float sine = sincos(-M_PI_F * (float)(lane & (gap - 1u)) / (float)gap, &cosine);
        float2 turned = (float2)(odd.x * cosine - odd.y * sine, odd.x * sine + odd.y * cosine);
        barrier(CLK_LOCAL_MEM_FENCE);
        points[lane] = (lane & gap) != 0u ? even - turned : even + turned;
    }
    spectrum[base + lane] = points[lane];
}
