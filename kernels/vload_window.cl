// Slides a four-wide vload over a float array and stores each window less its mean.
// In the set because vload4 reads four elements from an arbitrary offset, and an argument changes
// type inside the kernel: `windows` is declared float4 and addressed as float.
__kernel void vload_window(__global const float *in, __global float4 *windows, int n)
{
    int i = get_global_id(0);
    __global float *flat = (__global float *)windows;
    if (i + 4 <= n) {
        float4 w = vload4(0, in + i);
        vstore4(w - 0.25f * (w.x + w.y + w.z + w.w), i, flat);
    }
}
