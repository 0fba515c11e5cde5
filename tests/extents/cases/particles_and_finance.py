"""Bodies, lattices of options, random numbers, neural layers: structures, arrays of structures, tiles."""

from __future__ import annotations

from tests.extents.case import case, groups, guarded, items, lanes, pitched, plane, steered

CASES = (
    case(
        """
        __kernel void nbody_tiles(__global const float4 *pos, __global const float4 *vel, int num_bodies,
                                  float dt, float eps, __local float4 *local_pos, __global float4 *new_pos,
                                  __global float4 *new_vel) {
            unsigned int tid = get_local_id(0), gid = get_global_id(0), size = get_local_size(0);
            unsigned int tiles = num_bodies / size;
            float4 my = pos[gid], acc = (float4)(0.0f);
            for (int i = 0; i < tiles; ++i) {
                local_pos[tid] = pos[i * size + tid];
                barrier(CLK_LOCAL_MEM_FENCE);
                for (int j = 0; j < size; ++j) acc += rsqrt(dot(local_pos[j], local_pos[j]) + eps) * my;
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            new_pos[gid] = my + vel[gid] * dt;
            new_vel[gid] = vel[gid] + acc * dt;
        }
        """,
        pos=lambda s: max(s.g0, s.num_bodies // s.l0 * s.l0),
        vel=items,
        local_pos=lambda s: s.l0 if s.num_bodies >= s.l0 else 0,
        new_pos=items,
        new_vel=items,
    ),
    case(
        """
        typedef struct { float3 position; float mass; float velocity[3]; int kind; } Particle;
        __kernel void move_particles(__global Particle *particles, __global float *energy, float dt, uint n) {
            uint i = get_global_id(0);
            if (i >= n) return;
            __global Particle *p = particles + i;
            float v = p->velocity[0] * p->velocity[2];
            p->position.x += v * dt;
            energy[i] = 0.5f * p->mass * v;
        }
        """,
        particles=guarded,
        energy=guarded,
    ),
    case(
        """
        __kernel void soa_in_one_buffer(__global float *state, int n, float dt) {
            int i = get_global_id(0);
            __global float *x = state, *y = x + n, *z = y + n, *vx = z + n;
            x[i] += vx[i] * dt;
            y[i] += vx[i + n] * dt;
            z[i] += vx[i + 2 * n] * dt;
        }
        """,
        state=lambda s: 5 * s.n + s.g0,
    ),
    steered(
        """
        __kernel void md_neighbours(__global float4 *force, __global const float4 *position, const int count,
                                    __global const int *neighbours, const float cutoff, const int n) {
            uint i = get_global_id(0);
            float4 mine = position[i], f = (float4)(0.0f);
            for (int j = 0; j < count; j++) {
                float4 d = mine - position[neighbours[j * n + i]];
                if (dot(d, d) < cutoff) f += d;
            }
            force[i] = f;
        }
        """,
        force=items,
        neighbours=lambda s: (s.count - 1) * s.n + s.g0,
    ),
    case(
        """
        __kernel void black_scholes_pairs(__global const float *rand, const int width, __global float4 *call,
                                          __global float4 *put) {
            size_t x = get_global_id(0), y = get_global_id(1);
            float4 in = vload4(y * width + x, rand);
            call[y * width + x] = in * 2.0f;
            put[y * width + x] = in * 3.0f;
        }
        """,
        rand=lambda s: 4 * ((s.g1 - 1) * s.width + s.g0),
        call=lambda s: (s.g1 - 1) * s.width + s.g0,
        put=lambda s: (s.g1 - 1) * s.width + s.g0,
    ),
    case(
        """
        __kernel void binomial_option(int steps, __global const float4 *rand, __global float4 *output,
                                      __local float4 *call_a, __local float4 *call_b) {
            unsigned int tid = get_local_id(0), bid = get_group_id(0);
            float4 in = rand[bid];
            call_a[tid] = in * tid;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int j = steps; j > 0; j -= 2) {
                if (tid < j && tid + 1 < get_local_size(0)) call_b[tid] = call_a[tid] + call_a[tid + 1];
                barrier(CLK_LOCAL_MEM_FENCE);
                if (tid < j - 1 && tid + 1 < get_local_size(0)) call_a[tid] = call_b[tid] + in;
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            if (tid == 0) output[bid] = call_a[0];
        }
        """,
        rand=groups,
        output=groups,
        call_a=lanes,
        call_b=lambda s: min(s.l0 - 1, s.steps),
    ),
    case(
        """
        uint next_random(uint *state) { return *state = *state * 1664525u + 1013904223u; }
        __kernel void monte_carlo_walks(__global const uint *seeds, __global float *sums, uint samples) {
            uint state = seeds[get_global_id(0)];
            float sum = 0.0f;
            for (uint k = 0; k < samples; ++k) sum += next_random(&state) * 2.3283064e-10f;
            sums[get_global_id(0)] = sum;
        }
        """,
        seeds=items,
        sums=items,
    ),
    case(
        """
        __kernel void mersenne_blocks(__global const uint *seeds, __global uint *out, const int per_item) {
            int gid = get_global_id(0), stride = get_global_size(0);
            uint state[19];
            state[0] = seeds[gid];
            for (int i = 1; i < 19; ++i) state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
            for (int i = 0, s = 0; i < per_item; ++i, s = (s + 1) % 19) {
                state[s] ^= state[(s + 9) % 19] >> 11;
                out[gid + i * stride] = state[s];
            }
        }
        """,
        seeds=items,
        out=lambda s: s.g0 * s.per_item,
    ),
    case(
        """
        typedef struct { float real, imag, kx, ky; } Sample;
        __kernel void mriq_points(int num_k, int first, __constant Sample *ck, __global const float *x,
                                  __global float *q) {
            int i = get_global_id(0);
            float at = x[i], sum = 0.0f;
            for (int k = 0, global_k = first; k < 1024 && global_k < num_k; k++, global_k++)
                sum += ck[k].real * cos(at * ck[k].kx);
            q[i] += sum;
        }
        """,
        ck=lambda s: max(0, min(1024, s.num_k - s.first)),
        x=items,
        q=items,
    ),
    case(
        """
        __kernel void backprop_adjust(__global const float *delta, int hid, __global const float *ly,
                                      __global float *w, __global float *oldw) {
            int by = get_group_id(1), tx = get_local_id(0), ty = get_local_id(1), height = get_local_size(1);
            int index = (hid + 1) * height * by + (hid + 1) * ty + tx + 1 + (hid + 1);
            int index_y = height * by + ty + 1, index_x = tx + 1;
            w[index] += delta[index_x] * ly[index_y] + oldw[index];
            oldw[index] = delta[index_x] * ly[index_y];
        }
        """,
        delta=lambda s: s.l0 + 1,
        ly=lambda s: s.g1 + 1,
        w=lambda s: (s.hid + 1) * s.g1 + s.l0 + 1,
        oldw=lambda s: (s.hid + 1) * s.g1 + s.l0 + 1,
    ),
    case(
        """
        __kernel void conv_layer(__global const float *input, __global const float *weights,
                                 __global const float *bias, __global float *output, int channels, int side,
                                 int ksize) {
            int x = get_global_id(0), y = get_global_id(1), f = get_global_id(2);
            float sum = bias[f];
            for (int c = 0; c < channels; ++c)
                for (int ky = 0; ky < ksize; ++ky)
                    for (int kx = 0; kx < ksize; ++kx)
                        sum += input[(c * side + y + ky) * side + x + kx]
                             * weights[((f * channels + c) * ksize + ky) * ksize + kx];
            output[(f * get_global_size(1) + y) * get_global_size(0) + x] = sum;
        }
        """,
        input=lambda s: (
            ((s.channels - 1) * s.side + s.g1 + s.ksize - 2) * s.side + s.g0 + s.ksize - 1
        ),
        weights=lambda s: s.g2 * s.channels * s.ksize * s.ksize,
        bias=lambda s: s.g2,
        output=lambda s: s.g0 * s.g1 * s.g2,
    ),
    case(
        """
        __kernel void max_pool(__global const float *in, __global float *out, int in_w, int stride, int window) {
            int x = get_global_id(0), y = get_global_id(1);
            float most = -FLT_MAX;
            for (int j = 0; j < window; ++j)
                for (int i = 0; i < window; ++i) most = fmax(most, in[(y * stride + j) * in_w + x * stride + i]);
            out[y * get_global_size(0) + x] = most;
        }
        """,
        **{
            "in": lambda s: (
                ((s.g1 - 1) * s.stride + s.window - 1) * s.in_w + (s.g0 - 1) * s.stride + s.window
            ),
            "out": plane,
        },
    ),
    case(
        """
        __kernel void im2col_rows(__global const float *im, __global float *col, int width, int ksize, int out_w) {
            int i = get_global_id(0), row = i / out_w, column = i % out_w;
            for (int k = 0; k < ksize; ++k) col[i * ksize + k] = im[row * width + column + k];
        }
        """,
        col=lambda s: s.g0 * s.ksize,
    ),
    case(
        """
        __kernel void bias_and_relu(__global float *x, __global const float *bias, int channels, int spatial) {
            int i = get_global_id(0), c = get_global_id(1);
            if (i >= spatial || c >= channels) return;
            x[c * spatial + i] = fmax(0.0f, x[c * spatial + i] + bias[c]);
        }
        """,
        x=lambda s: pitched(min(s.g1, s.channels), min(s.g0, s.spatial), s.spatial),
        bias=lambda s: min(s.g1, s.channels),
    ),
    steered(
        """
        __kernel void embedding_rows(__global const float *table, __global const int *tokens,
                                     __global float *out, int width) {
            int c = get_global_id(0), t = get_global_id(1);
            if (c < width) out[t * width + c] = table[tokens[t] * width + c];
        }
        """,
        tokens=lambda s: s.g1,
        out=lambda s: pitched(s.g1, min(s.g0, s.width), s.width),
    ),
)
