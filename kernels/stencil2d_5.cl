// Five-point heat step on a 2-D field with a row pitch; border cells are copied.
// In the set for its guards in both dimensions: the extent is a polynomial of the sizes and the
// pitch, cut off where the pitch ends before the NDRange does.
__kernel void stencil2d_5(__global const float *in, __global float *out, float rate, int pitch)
{
    int x = get_global_id(0);
    int y = get_global_id(1);
    int last_row = (int)get_global_size(1) - 1;
    if (x >= pitch)
        return;
    int here = y * pitch + x;
    float centre = in[here];
    if (x > 0 && x < pitch - 1 && y > 0 && y < last_row) {
        float around = in[here - 1] + in[here + 1] + in[here - pitch] + in[here + pitch];
        centre += 0.125f * rate * (around - 4.0f * centre);
    }
    out[here] = centre;
}
