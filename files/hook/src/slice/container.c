/* container.c - attaching to the slice, once per process, and following the host's page.
 *
 * Owns:    the two mappings, the stance, the quotas. A slice is /run/tenfold; where that is absent, the folder in TENFOLD_SLOT_DIR
 *          (tests, cuda_hook_verify); where neither is, HAMi-core's variables (standalone.c). A tenant can set variables but not
 *          remove the mounted folder, so the order matters.
 * Fork:    the mark lies in a page that the kernel empties in a child (MADV_WIPEONFORK, with an atfork handler for older kernels); a child
 *          attaches anew with its own slot and inherits no usage: all that keeps something of its process is told (parts.h).
 * Failure: a missing or damaged state, a newer ABI, a full table: the page's policy, one message, never exit().
 * Next:    slots.c gives the slot, config_page.c parses. */
#include "slice/container.h"

#include "base/message.h"
#include "base/parts.h"
#include "slice/config_page.h"
#include "slice/slots.h"
#include "slice/standalone.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define SLICE_FOLDER "/run/tenfold"
#define FOLDER_VARIABLE "TENFOLD_SLOT_DIR"

enum { PATH_BYTES = 512 };

/* glibc's pthread_atfork is a wrapper around this; the wrapper is not in old thread-free C libraries. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso);

struct tf_container tf_the_container;
_Atomic(struct tf_mark *) tf_container_mark;

static void after_fork_in_child(void)
{
    struct tf_mark *mark = atomic_load(&tf_container_mark);
    if (mark)
        atomic_store(&mark->word, TF_MARK_NONE);
}

static struct tf_mark *make_mark(void)
{
    struct tf_mark *mark = atomic_load_explicit(&tf_container_mark, memory_order_acquire);
    if (mark)
        return mark;
    static struct tf_mark last_resort; /* no memory at all: then fork is served by the atfork handler alone */
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct tf_mark *fresh = page == MAP_FAILED ? &last_resort : page, *none = NULL;
    bool is_wiped = page != MAP_FAILED && madvise(page, 4096, MADV_WIPEONFORK) == 0;
    if (!atomic_compare_exchange_strong(&tf_container_mark, &none, fresh)) {
        if (page != MAP_FAILED)
            munmap(page, 4096);
        return none;
    }
    if (!is_wiped)
        __register_atfork(NULL, NULL, after_fork_in_child, NULL);
    return fresh;
}

int tf_container_gpu(const struct tf_container *self, const unsigned char uuid[16])
{
    for (uint32_t gpu = 0; gpu < self->gpu_count; gpu++)
        if (memcmp(self->uuids[gpu], uuid, 16) == 0)
            return (int)gpu;
    return -1;
}

static void take_quota(struct tf_quota *quota, const struct tenfold_gpu_config *config)
{
    atomic_store(&quota->memory_limit_bytes, config->memory_limit_bytes);
    atomic_store(&quota->overhead_reserve_bytes, config->overhead_reserve_bytes);
    atomic_store(&quota->core_limit_percent, config->core_limit_percent < 100 ? config->core_limit_percent : 0);
    atomic_store(&quota->mode, config->mode);
    atomic_store(&quota->priority, config->priority);
    atomic_store(&quota->pressure, config->pressure);
    atomic_store(&quota->overhead, config->overhead);
    atomic_store(&quota->is_listed, true);
}

static const struct tenfold_gpu_config *config_of(const struct tenfold_config_copy *copy, const unsigned char uuid[16])
{
    for (uint32_t index = 0; index < copy->gpu_count; index++) {
        unsigned char other[16];
        if (tf_uuid_parse(copy->gpus[index].uuid, other) && memcmp(uuid, other, 16) == 0)
            return &copy->gpus[index];
    }
    return NULL;
}

static void take_copy(struct tf_container *self, const struct tenfold_config_copy *copy)
{
    bool has_core_limits = false;
    for (uint32_t gpu = 0; gpu < self->gpu_count; gpu++) {
        const struct tenfold_gpu_config *config = config_of(copy, self->uuids[gpu]);
        if (!config) {
            atomic_store(&self->quotas[gpu].is_listed, false);
            continue;
        }
        take_quota(&self->quotas[gpu], config);
        has_core_limits |= config->core_limit_percent % 100 != 0 && config->mode != TENFOLD_MODE_OFF;
    }
    atomic_store(&self->view, copy->view);
    atomic_store(&self->has_core_limits, has_core_limits && atomic_load(&self->stance) == TF_ENFORCED);
    TF_EACH_PART(part)
        if ((*part)->page_changed)
            (*part)->page_changed();
    atomic_store_explicit(&self->generation, copy->generation, memory_order_release);
}

void tf_container_take_page(struct tf_container *self)
{
    struct tenfold_config_copy copy;
    uint32_t abi;
    /* a page damaged in both copies keeps the last good quotas in force */
    if (tf_config_read(self->page, &copy, &abi) != 0 || copy.generation == atomic_load(&self->generation))
        return;
    tf_lock_acquire(&self->refresh_lock);
    if (copy.generation > atomic_load(&self->generation))
        take_copy(self, &copy);
    tf_lock_release(&self->refresh_lock);
}

/* `ret_descriptor` NULL: closed again, the mapping stays. */
static const void *map_file(const char *path, size_t bytes, int open_flags, int protection, int *ret_descriptor, int *ret_error)
{
    int descriptor = open(path, open_flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) {
        *ret_error = errno;
        return NULL;
    }
    off_t size = lseek(descriptor, 0, SEEK_END);
    void *memory = size == (off_t)bytes ? mmap(NULL, bytes, protection, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    *ret_error = size == (off_t)bytes ? errno : EPROTO;
    if (ret_descriptor && memory != MAP_FAILED)
        *ret_descriptor = descriptor;
    else
        close(descriptor);
    return memory == MAP_FAILED ? NULL : memory;
}

/* "<folder>/config" of this process's slice, or NULL: it has none. */
static const char *find_folder(char path[PATH_BYTES])
{
    if (access(SLICE_FOLDER "/config", F_OK) == 0)
        return strcpy(path, SLICE_FOLDER);
    const char *folder = secure_getenv(FOLDER_VARIABLE);
    if (!folder || !*folder || strlen(folder) > PATH_BYTES - 16)
        return NULL;
    return strcpy(path, folder);
}

static int degrade(uint32_t policy, const char *folder, const char *what, int error)
{
    int stance = policy == TENFOLD_POLICY_OPEN ? TF_OPEN : TF_CLOSED;
    tf_message("%s/%s cannot be used (%s); %s by policy", folder, what, error ? strerror(error) : "damaged or of another version",
        stance == TF_OPEN ? "no limits" : "no memory is given out");
    return stance;
}

static bool is_state_good(const struct tenfold_state *state)
{
    return state->header.magic == TENFOLD_STATE_MAGIC && state->header.abi_version == TENFOLD_ABI_VERSION
        && state->header.file_bytes == sizeof *state;
}

/* The order of cards is the state's, so that all processes agree; the UUIDs count only as far as the page lists them. */
static void take_uuids(struct tf_container *self)
{
    self->gpu_count = 0;
    for (uint32_t gpu = 0; gpu < TENFOLD_GPUS_MAX; gpu++) {
        char text[TENFOLD_UUID_CHARS];
        memcpy(text, self->state->gpus[gpu].uuid, sizeof text);
        text[sizeof text - 1] = '\0';
        if (!tf_uuid_parse(text, self->uuids[gpu]))
            return;
        self->gpu_count = gpu + 1;
    }
}

static int attach_to(struct tf_container *self, const char *folder)
{
    char path[PATH_BYTES];
    struct tenfold_config_copy copy;
    uint32_t abi = 0;
    int error = 0;
    strcat(strcpy(path, folder), "/config");
    self->page = map_file(path, TENFOLD_CONFIG_BYTES, O_RDONLY, PROT_READ, NULL, &error);
    if (!self->page || tf_config_read(self->page, &copy, &abi) != 0)
        return degrade(TENFOLD_POLICY_CLOSED, folder, "config", self->page ? 0 : error);

    strcat(strcpy(path, folder), "/state");
    self->state = (struct tenfold_state *)map_file(path, TENFOLD_STATE_BYTES, O_RDWR, PROT_READ | PROT_WRITE, &self->self.lock_descriptor, &error);
    if (!self->state || !is_state_good(self->state))
        return degrade(copy.policy, folder, "state", self->state ? 0 : error);
    self->policy = copy.policy;
    atomic_store(&self->stance, TF_ENFORCED); /* unless there is no slot for us, see below */
    take_uuids(self);
    take_copy(self, &copy);
    error = tf_slots_attach(self->state, &self->self, &self->slot);
    if (error) {
        if (copy.policy == TENFOLD_POLICY_OPEN)
            __atomic_fetch_add(&self->state->open_fallbacks, 1, __ATOMIC_RELAXED);
        return degrade(copy.policy, folder, "state", -error);
    }
    return TF_ENFORCED;
}

static void detach_inherited(struct tf_container *self)
{
    if (self->page)
        munmap((void *)self->page, TENFOLD_CONFIG_BYTES);
    if (self->state)
        munmap(self->state, TENFOLD_STATE_BYTES);
    self->page = NULL;
    self->state = NULL;
    atomic_store(&self->generation, 0);
    atomic_store(&self->has_core_limits, false);
    atomic_store(&self->refresh_lock.word, 0);
    memset((void *)self->overhead_bytes, 0, sizeof self->overhead_bytes);
    TF_EACH_PART(part)
        if ((*part)->forget)
            (*part)->forget();
}

/* A first attach finds everything zero, and touching it would cost its pages. */
static bool is_first_attach(void) { return atomic_load(&tf_epoch) == 1; }

static void attach(struct tf_container *self)
{
    int saved_errno = errno;
    char folder[PATH_BYTES];
    if (!is_first_attach())
        detach_inherited(self);
    tf_process_self(&self->self);
    int stance = find_folder(folder) ? attach_to(self, folder) : tf_standalone_attach(self);
    atomic_store(&self->stance, stance);
    if (stance != TF_ENFORCED)
        atomic_store(&self->has_core_limits, false);
    errno = saved_errno;
}

struct tf_container *tf_container_attach(void)
{
    struct tf_container *self = &tf_the_container;
    struct tf_mark *mark = make_mark();
    for (;;) {
        uint32_t none = TF_MARK_NONE;
        if (atomic_compare_exchange_strong(&mark->word, &none, TF_MARK_BUSY)) {
            attach(self);
            atomic_fetch_add(&tf_epoch, 1);
            atomic_store_explicit(&mark->word, TF_MARK_ATTACHED, memory_order_release);
            return self;
        }
        if (none == TF_MARK_ATTACHED)
            return self;
        sched_yield(); /* another thread of ours attaches: microseconds */
    }
}
