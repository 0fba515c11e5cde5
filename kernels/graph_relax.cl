// One Bellman-Ford round, one edge per work-item: atomic_min of a new distance at the target.
// Old and new distances are two buffers, so the order of the edges cannot change the result.
// In the set for scattered atomics whose addresses come from the data.
__kernel void graph_relax(__global const int *source, __global const int *target,
                          __global const uint *weight, __global const uint *old_distance,
                          __global uint *new_distance, int num_edges, int num_vertices)
{
    int edge = get_global_id(0);
    if (edge >= num_edges)
        return;
    int from = source[edge];
    int to = target[edge];
    if (from < num_vertices && to < num_vertices)
        atomic_min(&new_distance[to], old_distance[from] + weight[edge]);
}
