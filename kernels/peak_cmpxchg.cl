// Largest value of each of sixteen interleaved channels, by compare-and-exchange on the bits.
// In the set for the float atomic that OpenCL 1.2 lacks; a maximum has no rounding, so the order of
// the work-items cannot change it. The number of attempts depends on the data.
#define CHANNELS 16

void atomic_max_float(volatile __global uint *at, float value)
{
    uint seen = atomic_or(at, 0u);
    while (as_float(seen) < value) {
        uint before = atomic_cmpxchg(at, seen, as_uint(value));
        if (before == seen)
            break;
        seen = before;
    }
}

__kernel void peak_cmpxchg(__global const float *in, volatile __global uint *peaks)
{
    int i = get_global_id(0);
    atomic_max_float(&peaks[i & (CHANNELS - 1)], in[i]);
}
