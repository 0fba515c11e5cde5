// Acceleration of each target by at most 16 sources, which the work-group stages in local memory
// a tile at a time. In the set beside nbody: the same arithmetic with one global load a work-item
// and tile, a __local float4 argument and a helper that reads it.
#define MAX_SOURCES 16
#define SOFTENING 1e-3f

float4 pull_of_tile(float4 me, __local const float4 *tile, int count)
{
    float4 pull = (float4)(0.0f);
    for (int k = 0; k < count; ++k) {
        float4 body = tile[k];
        float4 gap = body - me;
        gap.w = 0.0f;
        float inverse = rsqrt(dot(gap, gap) + SOFTENING);
        pull += gap * (body.w * inverse * inverse * inverse);
    }
    return pull;
}

__kernel void nbody_tiled(__global const float4 *targets, __global const float4 *sources,
                          __global float4 *accel, __local float4 *tile, int num_sources)
{
    int i = get_global_id(0);
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int total = min(num_sources, MAX_SOURCES);
    float4 me = targets[i];
    float4 pull = (float4)(0.0f);
    for (int first = 0; first < total; first += lanes) {
        tile[lane] = first + lane < total ? sources[first + lane] : (float4)(0.0f);
        barrier(CLK_LOCAL_MEM_FENCE);
        pull += pull_of_tile(me, tile, min(lanes, total - first));
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    accel[i] = pull;
}
