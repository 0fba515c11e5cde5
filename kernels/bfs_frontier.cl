// One level of a breadth-first search over a CSR graph: every vertex of the frontier lowers the
// level of its neighbours and puts those it lowered into the next frontier.
// In the set for work that only the data knows: most work-items leave at once, the others loop.
__kernel void bfs_frontier(__global const int *row_offsets, __global const int *neighbours,
                           __global const int *frontier, __global int *levels,
                           __global int *next_frontier, int num_offsets, int depth)
{
    int vertex = get_global_id(0);
    if (vertex + 1 >= num_offsets || (frontier[vertex] & 3) != 0)
        return;
    int level = depth & 7;
    int end = row_offsets[vertex + 1];
    for (int edge = row_offsets[vertex]; edge < end; ++edge) {
        int to = neighbours[edge];
        if (to + 1 < num_offsets && atomic_min(&levels[to], level) > level)
            atomic_or(next_frontier + to, 16);
    }
}
