// Five-point fourth-order second derivative in one dimension; the two cells at each end are copied.
// In the set because interior and border take different branches with different reach.
__kernel void stencil1d_5(__global const float *u, __global float *d2u, float inverse_h2, int n)
{
    int i = get_global_id(0);
    if (i >= n)
        return;
    if (i < 2 || i + 2 >= n) {
        d2u[i] = u[i];
        return;
    }
    float outer = u[i - 2] + u[i + 2];
    float inner = u[i - 1] + u[i + 1];
    d2u[i] = inverse_h2 * (-outer + 16.0f * inner - 30.0f * u[i]) / 12.0f;
}
