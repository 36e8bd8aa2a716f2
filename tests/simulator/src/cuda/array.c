/* array.c - arrays and mipmapped arrays: opaque, charged by their linear size rounded like any allocation.
 *
 * Hardware pads rows and tiles by rules that are not public; what it really takes is told by cuArrayGetMemoryRequirements, here and
 * there, and that is what is charged. Sparse and deferred arrays are charged nothing. */
#include "heap.h"

struct CUarray_st {
    struct object head;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUcontext context;
    uint64_t epoch;
    CUdeviceptr address; /* of its heap entry; 0 = charged nothing */
    bool is_level;
};

struct CUmipmappedArray_st {
    struct object head;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUcontext context;
    CUdeviceptr address;
    unsigned level_count;
    CUarray levels[17];
};

/* Bytes of one channel, by CUarray_format; 0 = no such format here. */
static unsigned format_bytes(unsigned format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    default: return 0;
    }
}

static bool is_valid(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    return d->width && format_bytes(d->format) && (d->channels == 1 || d->channels == 2 || d->channels == 4) && d->width < 1u << 20 &&
           d->height < 1u << 20 && d->depth < 1u << 20;
}

static uint64_t linear_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    return (uint64_t)d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1) * format_bytes(d->format) * d->channels;
}

static bool takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    return !(d->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

static CUresult create(CUarray *ret_array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    CUcontext context;
    REQUIRE(ret_array && is_valid(descriptor), CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUarray array = object_new(KIND_ARRAY, sizeof *array);
    REQUIRE(array, CUDA_ERROR_OUT_OF_MEMORY);
    array->descriptor = *descriptor;
    array->context = context;
    driver_lock();
    if (takes_memory(descriptor))
        result = heap_allocate(context, HEAP_ARRAY, linear_bytes(descriptor), &array->address);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_array = array;
    else
        object_free(array);
    return result;
}

static CUDA_ARRAY3D_DESCRIPTOR deepened(const CUDA_ARRAY_DESCRIPTOR *flat)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){.width = flat->width, .height = flat->height, .format = flat->format, .channels = flat->channels};
}

CUDA_EXPORT cuArrayCreate_v2(CUarray *ret_array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    ENTER(cuArrayCreate_v2);
    REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR deep = deepened(descriptor);
    return create(ret_array, &deep);
}

CUDA_EXPORT cuArray3DCreate_v2(CUarray *ret_array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    ENTER(cuArray3DCreate_v2);
    REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
    return create(ret_array, descriptor);
}

CUDA_EXPORT cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *ret_descriptor, CUarray array)
{
    ENTER(cuArrayGetDescriptor_v2);
    REQUIRE(ret_descriptor, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(array, KIND_ARRAY), CUDA_ERROR_INVALID_HANDLE);
    const CUDA_ARRAY3D_DESCRIPTOR *d = &array->descriptor;
    *ret_descriptor = (CUDA_ARRAY_DESCRIPTOR){.width = d->width, .height = d->height, .format = d->format, .channels = d->channels};
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *ret_descriptor, CUarray array)
{
    ENTER(cuArray3DGetDescriptor_v2);
    REQUIRE(ret_descriptor, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(array, KIND_ARRAY), CUDA_ERROR_INVALID_HANDLE);
    *ret_descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

static void requirements(uint64_t bytes, CUDA_ARRAY_MEMORY_REQUIREMENTS *ret_requirements)
{
    const struct sim_memory_model *model = &g_driver.machine.state->memory;
    *ret_requirements =
        (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size_bytes = memory_rounded(model, bytes), .alignment_bytes = model->granule_bytes};
}

CUDA_EXPORT cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *ret_requirements, CUarray array, CUdevice device)
{
    ENTER(cuArrayGetMemoryRequirements);
    REQUIRE(ret_requirements, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(array, KIND_ARRAY), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    requirements(linear_bytes(&array->descriptor), ret_requirements);
    return CUDA_SUCCESS;
}

/* Under driver_lock(). A destroyed context took the entry along. */
static void give_back(CUdeviceptr address)
{
    struct heap_entry *entry = heap_find(address, HEAP_ARRAY);
    if (entry)
        heap_release(entry);
}

CUDA_EXPORT cuArrayDestroy(CUarray array)
{
    ENTER(cuArrayDestroy);
    REQUIRE(object_is(array, KIND_ARRAY) && !array->is_level, CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    physical_array_gone(array);
    give_back(array->address);
    object_free(array);
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *base, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR d = *base;
    d.width = d.width >> level ? d.width >> level : 1;
    d.height = d.height ? (d.height >> level ? d.height >> level : 1) : 0;
    if (d.depth && !(d.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        d.depth = d.depth >> level ? d.depth >> level : 1;
    return d;
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *base, unsigned levels)
{
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        CUDA_ARRAY3D_DESCRIPTOR d = level_of(base, level);
        bytes += linear_bytes(&d);
    }
    return bytes;
}

static unsigned levels_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    size_t longest = d->width > d->height ? d->width : d->height;
    unsigned levels = 1;
    for (longest = longest > d->depth ? longest : d->depth; longest > 1; longest >>= 1)
        levels++;
    return levels > 17 ? 17 : levels;
}

CUDA_EXPORT cuMipmappedArrayCreate(CUmipmappedArray *ret_array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level_count)
{
    ENTER(cuMipmappedArrayCreate);
    CUcontext context;
    REQUIRE(ret_array && descriptor && is_valid(descriptor) && level_count, CUDA_ERROR_INVALID_VALUE);
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUmipmappedArray array = object_new(KIND_MIPMAP, sizeof *array);
    REQUIRE(array, CUDA_ERROR_OUT_OF_MEMORY);
    array->descriptor = *descriptor;
    array->context = context;
    array->level_count = level_count < levels_of(descriptor) ? level_count : levels_of(descriptor);
    driver_lock();
    if (takes_memory(descriptor))
        result = heap_allocate(context, HEAP_ARRAY, mipmap_bytes(descriptor, array->level_count), &array->address);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_array = array;
    else
        object_free(array);
    return result;
}

CUDA_EXPORT cuMipmappedArrayGetLevel(CUarray *ret_level, CUmipmappedArray array, unsigned level)
{
    ENTER(cuMipmappedArrayGetLevel);
    REQUIRE(ret_level, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(array, KIND_MIPMAP), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(level < array->level_count, CUDA_ERROR_INVALID_VALUE);
    driver_lock();
    if (!array->levels[level] && (array->levels[level] = object_new(KIND_ARRAY, sizeof **array->levels))) {
        array->levels[level]->descriptor = level_of(&array->descriptor, level);
        array->levels[level]->context = array->context;
        array->levels[level]->is_level = true;
    }
    *ret_level = array->levels[level];
    driver_unlock();
    return *ret_level ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_EXPORT cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *ret_requirements, CUmipmappedArray array,
                                                  CUdevice device)
{
    ENTER(cuMipmappedArrayGetMemoryRequirements);
    REQUIRE(ret_requirements, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(array, KIND_MIPMAP), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    requirements(mipmap_bytes(&array->descriptor, array->level_count), ret_requirements);
    return CUDA_SUCCESS;
}

CUDA_EXPORT cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    ENTER(cuMipmappedArrayDestroy);
    REQUIRE(object_is(array, KIND_MIPMAP), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    for (unsigned level = 0; level < array->level_count; level++)
        object_free(array->levels[level]);
    physical_array_gone(array);
    give_back(array->address);
    object_free(array);
    driver_unlock();
    return CUDA_SUCCESS;
}
