// One Bellman-Ford round, one edge per work-item: the candidate distance through each edge, and
// atomic_min of it at the target. Old and new distances are two buffers, so the order of the edges
// cannot change the result. In the set for scattered atomics whose addresses come from the data.
__kernel void graph_relax(__global const int *source, __global const int *target,
                          __global const uint *weight, __global const uint *old_distance,
                          __global uint *new_distance, __global uint *candidate,
                          int num_edges, int num_vertices)
{
    int edge = get_global_id(0);
    if (edge >= num_edges)
        return;
    int from = source[edge];
    int to = target[edge];
    uint reach = UINT_MAX;
    uint cost = weight[edge];
    if (from < num_vertices && to < num_vertices) {
        reach = old_distance[from] + cost;
        atomic_min(&new_distance[to], reach);
    }
    candidate[edge] = reach;
}
