/* An OpenCL runtime that lists devices and then does what a broken one does when a program is compiled: it aborts
 * (-DABORTS) or never returns, with a compiler process of its own running beside it. It lists one CPU device, or
 * four GPUs (-DGPUS), or none (-DEMPTY).
 *
 * Loaded by the ICD loader as any runtime; without OpenCL headers, so a bare C compiler builds it. Positions in the
 * dispatch table and constants are those of the Khronos headers (cl_icd.h, cl.h).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;

enum { PLATFORM_PROFILE = 0x0900, PLATFORM_VERSION, PLATFORM_NAME, PLATFORM_VENDOR, PLATFORM_EXTENSIONS };
enum { PLATFORM_ICD_SUFFIX = 0x0920, DEVICE_TYPE = 0x1000, DEVICE_NAME = 0x102B, DEVICE_VERSION = 0x102F, DEVICE_PLATFORM = 0x1031 };
#ifdef GPUS
enum { TYPE = 4, NUM_DEVICES = 4 };
static const char name_of_platform[] = "NVIDIA CUDA";
#else
#ifdef EMPTY
enum { TYPE = 2, NUM_DEVICES = 0 };
#else
enum { TYPE = 2, NUM_DEVICES = 1 };
#endif
static const char name_of_platform[] = "Portable Computing Language";
#endif
enum { DEVICE_NOT_FOUND = -1, INVALID_VALUE = -30, INVALID_PLATFORM = -32 };
enum { GET_PLATFORM_IDS = 0, GET_PLATFORM_INFO, GET_DEVICE_IDS, GET_DEVICE_INFO, CREATE_CONTEXT };

static void *dispatch[256];
static struct object { void **dispatch; } platform = {dispatch}, devices[4] = {{dispatch}, {dispatch}, {dispatch}, {dispatch}};

static cl_int answer(const void *value, size_t bytes, size_t room, void *out, size_t *needed)
{
    if (needed) *needed = bytes;
    if (out && room < bytes) return INVALID_VALUE;
    if (out) memcpy(out, value, bytes);
    return 0;
}

static cl_int text(const char *value, size_t room, void *out, size_t *needed)
{
    return answer(value, strlen(value) + 1, room, out, needed);
}

static cl_int get_platform_ids(cl_uint room, void **out, cl_uint *count)
{
    if (count) *count = 1;
    if (out && room) out[0] = &platform;
    return 0;
}

cl_int clGetPlatformInfo(void *of, cl_uint name, size_t room, void *out, size_t *needed)
{
    (void)of;
    switch (name) {
    case PLATFORM_PROFILE: return text("FULL_PROFILE", room, out, needed);
    case PLATFORM_VERSION: return text("OpenCL 3.0 stub", room, out, needed);
    case PLATFORM_NAME: return text(name_of_platform, room, out, needed);
    case PLATFORM_VENDOR: return text("LLMPerf tests", room, out, needed);
    case PLATFORM_EXTENSIONS: return text("cl_khr_icd", room, out, needed);
    case PLATFORM_ICD_SUFFIX: return text("STUB", room, out, needed);
    }
    return INVALID_VALUE;
}

static cl_int get_device_ids(void *of, uint64_t type, cl_uint room, void **out, cl_uint *count)
{
    (void)of, (void)type;
    if (count) *count = NUM_DEVICES;
    for (cl_uint i = 0; out && i < room && i < NUM_DEVICES; i++) out[i] = &devices[i];
    return NUM_DEVICES ? 0 : DEVICE_NOT_FOUND;
}

static cl_int get_device_info(void *of, cl_uint name, size_t room, void *out, size_t *needed)
{
    static const uint64_t type = TYPE, zero[8];
    void *mine = &platform;
    (void)of;
    switch (name) {
    case DEVICE_PLATFORM: return answer(&mine, sizeof mine, room, out, needed);
    case DEVICE_TYPE: return answer(&type, sizeof type, room, out, needed);
    case DEVICE_NAME: return text("stub", room, out, needed);
    case DEVICE_VERSION: return text("OpenCL 3.0 stub", room, out, needed);
    }
    return answer(zero, room < sizeof zero && room ? room : sizeof zero, room, out, needed);
}

static void create_context(void)
{
    if (fork() == 0) /* the compiler's own process, which keeps stdout open: it must end with the probe, too */
        for (;;) pause();
#ifdef ABORTS
    static const char message[] = "Do not know how to scalarize this operator's operand!\n";
    if (write(2, message, sizeof message - 1) < 0) _exit(1);
    abort();
#else
    for (;;) pause();
#endif
}

static cl_int not_there(void)
{
    return INVALID_PLATFORM;
}

cl_int clIcdGetPlatformIDsKHR(cl_uint room, void **out, cl_uint *count)
{
    for (size_t i = 0; i < sizeof dispatch / sizeof *dispatch; i++) dispatch[i] = (void *)not_there;
    dispatch[GET_PLATFORM_IDS] = (void *)get_platform_ids;
    dispatch[GET_PLATFORM_INFO] = (void *)clGetPlatformInfo;
    dispatch[GET_DEVICE_IDS] = (void *)get_device_ids;
    dispatch[GET_DEVICE_INFO] = (void *)get_device_info;
    dispatch[CREATE_CONTEXT] = (void *)create_context;
    return get_platform_ids(room, out, count);
}

void *clGetExtensionFunctionAddress(const char *name)
{
    return strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? (void *)clIcdGetPlatformIDsKHR : NULL;
}
