// Shifts a sampled line by a fraction of a sample with a Catmull-Rom cubic, ends repeated.
// In the set for helpers that call helpers with a pointer: the load is two calls below the kernel.
float load_clamped(__global const float *line, int at, int last)
{
    return line[clamp(at, 0, last)];
}

float sample_between(__global const float *line, int at, int last, float t)
{
    float a = load_clamped(line, at - 1, last);
    float b = load_clamped(line, at, last);
    float c = load_clamped(line, at + 1, last);
    float d = load_clamped(line, at + 2, last);
    float curve = t * (3.0f * (b - c) + d - a) + 2.0f * a - 5.0f * b + 4.0f * c - d;
    return b + 0.5f * t * (c - a + t * curve);
}

void shift_one(__global const float *line, __global float *to, int at, int last, float t)
{
    to[at] = sample_between(line, at, last, t);
}

__kernel void resample_cubic(__global const float *line, __global float *shifted, float shift,
                             int n)
{
    int i = get_global_id(0);
    if (i < n)
        shift_one(line, shifted, i, n - 1, 0.5f * (shift - floor(shift)) + 0.25f);
}
