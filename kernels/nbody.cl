// Gravitational pull on every target of at most the first MAX_SOURCES sources (w is the mass).
// In the set as all-pairs arithmetic on float4 with reuse from cache: compute bound, and quadratic
// until the cap.
#define MAX_SOURCES 64
#define SOFTENING 1.0e-2f

__kernel void nbody(__global const float4 *targets, __global const float4 *sources,
                    __global float4 *accel, int num_sources)
{
    size_t i = get_global_id(0);
    float4 me = targets[i];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    int count = min(num_sources, MAX_SOURCES);
    for (int j = 0; j < count; ++j) {
        float4 other = sources[j];
        float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
        float inverse = rsqrt(dx * dx + dy * dy + dz * dz + SOFTENING);
        float pull = other.w * inverse * inverse * inverse;
        ax += pull * dx;
        ay += pull * dy;
        az += pull * dz;
    }
    accel[i] = (float4)(ax, ay, az, me.w);
}
