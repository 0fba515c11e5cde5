// Eight smoothing steps inside each work-group, between two local buffers that swap each step.
// In the set for a barrier a step and for local pointers that alias each other's names.
#define STEPS 8

__kernel void double_buffer(__global const float *in, __global float *out, __local float *front,
                            __local float *back, int n)
{
    int i = get_global_id(0);
    int lane = get_local_id(0);
    int last = (int)get_local_size(0) - 1;
    front[lane] = i < n ? in[i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 0; step < STEPS; ++step) {
        float left = front[max(lane - 1, 0)];
        float right = front[min(lane + 1, last)];
        back[lane] = 0.25f * left + 0.5f * front[lane] + 0.25f * right;
        barrier(CLK_LOCAL_MEM_FENCE);
        __local float *swap = front;
        front = back;
        back = swap;
    }
    if (i < n)
        out[i] = front[lane];
}
