// Which of at most 32 spheres each pixel's parallel ray meets first.
// In the set for a small table of structures that every work-item walks, with a number of turns
// from a scalar, and branches that differ between neighbours.
#define MAX_SPHERES 32

typedef struct {
    float centre[3];
    float radius;
    int material;
    uchar visible;
} sphere_t;

__kernel void ray_spheres(__global const sphere_t *spheres, __global int *materials,
                          int num_spheres)
{
    int px = get_global_id(0);
    int py = get_global_id(1);
    float x = (px + 0.5f) / get_global_size(0);
    float y = (py + 0.5f) / get_global_size(1);
    int count = min(num_spheres, MAX_SPHERES);
    float nearest = 1e9f;
    int material = -1;
    for (int k = 0; k < count; ++k) {
        __global const sphere_t *one = &spheres[k];
        float dx = x - one->centre[0];
        float dy = y - one->centre[1];
        float inside = one->radius * one->radius - dx * dx - dy * dy;
        float depth = one->centre[2] - sqrt(fabs(inside));
        if (inside > 0.0f && depth < nearest) {
            nearest = depth;
            material = one->material + (one->visible & 1);
        }
    }
    materials[py * get_global_size(0) + px] = material;
}
