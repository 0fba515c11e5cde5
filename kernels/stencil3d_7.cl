// Seven-point Laplacian on a 3-D field the shape of the NDRange; faces are copied.
// In the set as the 3-D kernel: neighbours one element, one row and one plane away.
__kernel void stencil3d_7(__global const float *in, __global float *out, float c_centre,
                          float c_side)
{
    int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    int nx = get_global_size(0), ny = get_global_size(1), nz = get_global_size(2);
    int plane = nx * ny;
    int here = (z * ny + y) * nx + x;
    float value = in[here];
    bool inside = x > 0 && x < nx - 1 && y > 0 && y < ny - 1 && z > 0 && z < nz - 1;
    if (inside) {
        float sides = in[here - 1] + in[here + 1] + in[here - nx] + in[here + nx]
                    + in[here - plane] + in[here + plane];
        value = c_centre * value + c_side * sides;
    }
    out[here] = value;
}
