// Copies between global and local memory with async_work_group_copy: a work-group's own stretch,
// in and out, and every num_groups-th element with the strided form.
// In the set because no load or store of the work-items themselves touches those buffers.
__kernel void async_tile(__global const float *in, __global float *out, __local float *tile)
{
    size_t lane = get_local_id(0);
    size_t lanes = get_local_size(0);
    size_t base = get_group_id(0) * lanes;
    event_t loaded = async_work_group_copy(tile, in + base, lanes, 0);
    wait_group_events(1, &loaded);
    float value = tile[lane] - 0.5f * tile[lane > 0 ? lane - 1 : 0];
    barrier(CLK_LOCAL_MEM_FENCE);
    tile[lane] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    event_t stored = async_work_group_copy(out + base, tile, lanes, 0);
    wait_group_events(1, &stored);
}

__kernel void async_strided(__global const float *in, __global float *out, __local float *tile)
{
    size_t lanes = get_local_size(0);
    event_t loaded =
        async_work_group_strided_copy(tile, &in[get_group_id(0)], lanes, get_num_groups(0), 0);
    wait_group_events(1, &loaded);
    out[get_global_id(0)] = tile[lanes - 1 - get_local_id(0)] + 1.0f;
}
