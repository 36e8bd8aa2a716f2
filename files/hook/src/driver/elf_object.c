/* elf_object.c - symbols of a library that is already loaded.
 *
 * Owns: walking the loader's list (dl_iterate_phdr) and the two hash table formats.
 * Why:  libdl is not in DT_NEEDED (an image that lacks it would lose every program), so dlsym itself has to be found by hand.
 * Next: driver.c and loader.c ask for the driver's and the loader's functions. */
#include "driver/elf_object.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

struct search {
    const char *soname;
    const void *address; /* in the object; NULL: anywhere */
    struct tf_object *found;
};

/* glibc relocates the pointers of a dynamic section on our architectures, except in objects that it maps read-only (the vDSO). */
static const void *dynamic_pointer(unsigned long base, unsigned long value)
{
    return (const void *)(value < base ? base + value : value);
}

static bool parse(unsigned long base, const ElfW(Dyn) *dynamic, const char **ret_soname, struct tf_object *ret_object)
{
    struct tf_object object = {.base = base};
    unsigned long soname_offset = 0;
    bool has_soname = false;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        const void *pointer = dynamic_pointer(base, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB: object.symbols = pointer; break;
        case DT_STRTAB: object.strings = pointer; break;
        case DT_GNU_HASH: object.gnu_hash = pointer; break;
        case DT_HASH: object.sysv_hash = pointer; break;
        case DT_VERSYM: object.versions = pointer; break;
        case DT_SONAME: soname_offset = dynamic->d_un.d_val, has_soname = true; break;
        default: break;
        }
    }
    if (!has_soname || !object.symbols || !object.strings || (!object.gnu_hash && !object.sysv_hash))
        return false;
    *ret_soname = object.strings + soname_offset;
    *ret_object = object;
    return true;
}

static bool contains(const struct dl_phdr_info *info, const void *address)
{
    for (int index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[index];
        if (part->p_type == PT_LOAD && (uintptr_t)address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return true;
    }
    return false;
}

static int visit_object(struct dl_phdr_info *info, size_t size, void *context)
{
    struct search *search = context;
    (void)size;
    if (search->address && !contains(info, search->address))
        return 0;
    for (int index = 0; index < info->dlpi_phnum; index++) {
        if (info->dlpi_phdr[index].p_type != PT_DYNAMIC)
            continue;
        struct tf_object object;
        const char *soname;
        const ElfW(Dyn) *dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[index].p_vaddr);
        if (parse(info->dlpi_addr, dynamic, &soname, &object) && strcmp(soname, search->soname) == 0) {
            *search->found = object;
            return 1;
        }
    }
    return 0;
}

bool tf_object_find(const char *soname, struct tf_object *ret_object)
{
    return tf_object_find_at(soname, NULL, ret_object);
}

bool tf_object_find_at(const char *soname, const void *address, struct tf_object *ret_object)
{
    struct search search = {soname, address, ret_object};
    return dl_iterate_phdr(visit_object, &search) == 1;
}

static bool is_definition(const struct tf_object *object, unsigned int index)
{
    const ElfW(Sym) *symbol = (const ElfW(Sym) *)object->symbols + index;
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0;
}

/* An old version of a symbol is hidden: the loader gives it only to those who ask for that version. */
static bool is_default_version(const struct tf_object *object, unsigned int index)
{
    return !object->versions || !(object->versions[index] & 0x8000u);
}

static bool matches(const struct tf_object *object, unsigned int index, const char *name)
{
    const ElfW(Sym) *symbol = (const ElfW(Sym) *)object->symbols + index;
    return is_definition(object, index) && is_default_version(object, index) && strcmp(object->strings + symbol->st_name, name) == 0;
}

static void *address_of(const struct tf_object *object, unsigned int index)
{
    return (void *)(object->base + ((const ElfW(Sym) *)object->symbols + index)->st_value);
}

static unsigned int gnu_hash_of(const char *name)
{
    unsigned int hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static const unsigned int *gnu_buckets(const unsigned int *table)
{
    return table + 4 + table[2] * (sizeof(unsigned long) / sizeof(unsigned int)); /* behind the Bloom filter */
}

static void *symbol_by_gnu_hash(const struct tf_object *object, const char *name)
{
    const unsigned int *table = object->gnu_hash;
    unsigned int bucket_count = table[0], first = table[1], hash = gnu_hash_of(name);
    const unsigned int *buckets = gnu_buckets(table), *chains = buckets + bucket_count;
    unsigned int index = bucket_count ? buckets[hash % bucket_count] : 0;
    if (index < first)
        return NULL;
    for (;; index++) {
        unsigned int entry = chains[index - first];
        if ((entry | 1u) == (hash | 1u) && matches(object, index, name))
            return address_of(object, index);
        if (entry & 1u)
            return NULL;
    }
}

static void *symbol_by_scan(const struct tf_object *object, const char *name)
{
    unsigned int count = object->sysv_hash[1];
    for (unsigned int index = 1; index < count; index++)
        if (matches(object, index, name))
            return address_of(object, index);
    return NULL;
}

void *tf_object_symbol(const struct tf_object *object, const char *name)
{
    return object->gnu_hash ? symbol_by_gnu_hash(object, name) : symbol_by_scan(object, name);
}

static unsigned int symbol_count(const struct tf_object *object)
{
    if (object->sysv_hash)
        return object->sysv_hash[1];
    const unsigned int *table = object->gnu_hash, *buckets = gnu_buckets(table), *chains = buckets + table[0];
    unsigned int last = 0;
    for (unsigned int bucket = 0; bucket < table[0]; bucket++)
        if (buckets[bucket] > last)
            last = buckets[bucket];
    if (last < table[1])
        return table[1];
    while (!(chains[last - table[1]] & 1u))
        last++;
    return last + 1;
}

void tf_object_each(const struct tf_object *object, void (*visit)(void *address, const char *name, void *context), void *context)
{
    unsigned int count = symbol_count(object);
    for (unsigned int index = 1; index < count; index++) {
        const ElfW(Sym) *symbol = (const ElfW(Sym) *)object->symbols + index;
        if (is_definition(object, index) && (symbol->st_info & 0xf) == STT_FUNC)
            visit(address_of(object, index), object->strings + symbol->st_name, context);
    }
}
