// One time step of the wave equation on a 3-D field with a row pitch, faces held at rest.
// In the set for a product of three sizes with a guard in one of them, and for a buffer that is
// read and written at the same element.
__kernel void wave3d(__global const float *now, __global float *before_and_next, float courant,
                     int pitch)
{
    int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    int height = get_global_size(1), depth = get_global_size(2);
    if (x >= pitch)
        return;
    int plane = height * pitch;
    int here = z * plane + y * pitch + x;
    float centre = now[here];
    float next = 0.0f;
    if (x > 0 && x + 1 < min(pitch, (int)get_global_size(0)) && y > 0 && y + 1 < height && z > 0 &&
        z + 1 < depth) {
        float around = now[here - 1] + now[here + 1] + now[here - pitch] + now[here + pitch] +
                       now[here - plane] + now[here + plane];
        next = 0.1f * courant * courant * (around - 6.0f * centre);
    }
    before_and_next[here] = next + 2.0f * centre - before_and_next[here];
}
