// A map whose cost is arithmetic: exponential, sine, logarithm and root of every element.
// In the set as the special-function end of the roofline, with the traffic of a scaled copy.
__kernel void transcendental_map(__global const float *in, __global float *out, float scale, uint n)
{
    uint i = get_global_id(0);
    if (i >= n)
        return;
    float v = in[i];
    float wave = native_exp(-v) * sin(6.2831853f * v);
    out[i] = scale * (wave + log(1.0f + v * v) + sqrt(fabs(v) + 1.0f));
}
