/* array.c - arrays and mipmapped arrays: opaque, charged by their linear size rounded like any allocation.
 *
 * Hardware pads rows and tiles by rules that are not public; what it really takes is told by cuArrayGetMemoryRequirements, here and
 * there, and that is what is charged. Sparse and deferred arrays are charged nothing. */
#include "heap.h"

/* An array or, behind a handle of its own type and kind, a mipmapped one. */
struct CUarray_st {
    struct object head;
    uint64_t size_bytes;
    CUdeviceptr address; /* of its heap entry; 0 = charged nothing */
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

static CUresult create(CUarray *ret_array, enum object_kind kind, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, uint64_t size_bytes)
{
    CUcontext context;
    TRY(context_require(&context));
    CUarray array = object_new(kind, sizeof *array);
    REQUIRE(array, CUDA_ERROR_OUT_OF_MEMORY);
    array->size_bytes = size_bytes;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    if (takes_memory(descriptor))
        result = heap_allocate(context, HEAP_ARRAY, size_bytes, &array->address);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *ret_array = array;
    else
        object_free(array);
    return result;
}

CUDA_EXPORT cuArrayCreate_v2(CUarray *ret_array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    ENTER(cuArrayCreate_v2);
    REQUIRE(ret_array && flat, CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR deep = {.width = flat->width, .height = flat->height, .format = flat->format, .channels = flat->channels};
    REQUIRE(is_valid(&deep), CUDA_ERROR_INVALID_VALUE);
    return create(ret_array, KIND_ARRAY, &deep, linear_bytes(&deep));
}

CUDA_EXPORT cuArray3DCreate_v2(CUarray *ret_array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    ENTER(cuArray3DCreate_v2);
    REQUIRE(ret_array && descriptor && is_valid(descriptor), CUDA_ERROR_INVALID_VALUE);
    return create(ret_array, KIND_ARRAY, descriptor, linear_bytes(descriptor));
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

/* As many levels as asked for, or as there are. */
static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *base, unsigned levels)
{
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels && level < 17 && (base->width | base->height | base->depth) >> level; level++) {
        CUDA_ARRAY3D_DESCRIPTOR d = level_of(base, level);
        bytes += linear_bytes(&d);
    }
    return bytes;
}

CUDA_EXPORT cuMipmappedArrayCreate(CUmipmappedArray *ret_array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    ENTER(cuMipmappedArrayCreate);
    REQUIRE(ret_array && descriptor && is_valid(descriptor) && levels, CUDA_ERROR_INVALID_VALUE);
    return create((CUarray *)ret_array, KIND_MIPMAP, descriptor, mipmap_bytes(descriptor, levels));
}

static CUresult give_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *ret_requirements, CUarray array, enum object_kind kind, CUdevice device)
{
    const struct sim_memory_model *model = &g_driver.machine.state->memory;
    REQUIRE(ret_requirements, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(object_is(array, kind), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(driver_card(device), CUDA_ERROR_INVALID_DEVICE);
    *ret_requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size_bytes = memory_rounded(model, array->size_bytes),
                                                         .alignment_bytes = model->granule_bytes};
    return CUDA_SUCCESS;
}

ENTRY(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS *ret_requirements, CUarray array, CUdevice device),
      give_requirements(ret_requirements, array, KIND_ARRAY, device))
ENTRY(cuMipmappedArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS *ret_requirements, CUmipmappedArray array, CUdevice device),
      give_requirements(ret_requirements, (CUarray)array, KIND_MIPMAP, device))

static CUresult destroy(CUarray array, enum object_kind kind)
{
    REQUIRE(object_is(array, kind), CUDA_ERROR_INVALID_HANDLE);
    driver_lock();
    physical_array_gone(array);
    driver_unlock();
    heap_free(array->address, HEAP_ARRAY); /* unless a destroyed context took it along */
    object_free(array);
    return CUDA_SUCCESS;
}

ENTRY(cuArrayDestroy, (CUarray array), destroy(array, KIND_ARRAY))
ENTRY(cuMipmappedArrayDestroy, (CUmipmappedArray array), destroy((CUarray)array, KIND_MIPMAP))
