// A tool's library by NVTX's injection interface: writes what it is told to the file that NVTX_TEST_LOG names, and refuses without one.

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*function)(void);

struct callbacks {
    size_t size;
    int (*get_module)(int module, function ***table, unsigned *size);
};

struct version_info {
    size_t size;
    uint32_t version;
    uint32_t reserved;
    void (*set_tool_version)(uint32_t version);
};

struct attributes {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
};

static FILE *out;
static _Atomic uint64_t ranges;
static int domain;

static void *create_domain(const char *name) {
    fprintf(out, "domain %s\n", name);
    return &domain;
}

static uint64_t start_range(void *of, const struct attributes *with) {
    uint64_t range = ++ranges;
    int is_right = of == &domain && with->version == 3 && with->size == sizeof *with && with->payload_type == 1
        && with->message_type == 1;
    fprintf(out, "%s %" PRIu64 " %s, %" PRIu64 "\n", is_right ? "start" : "wrong", range, with->message, with->payload);
    fflush(out);
    return range;
}

static void end_range(void *of, uint64_t range) {
    fprintf(out, "%s %" PRIu64 "\n", of == &domain ? "end" : "wrong", range);
    fflush(out);
}

int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t id)) {
    // As in NVTX's header, version 3: without these, tools have no place for their functions.
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    const struct callbacks *callbacks = get_export_table(1);
    const struct version_info *info = get_export_table(3);
    const char *path = getenv("NVTX_TEST_LOG");
    if (!path || !callbacks || callbacks->size != sizeof *callbacks || get_export_table(2)) return 0;
    if (!info || info->size != sizeof *info || info->version != 3) return 0;
    info->set_tool_version(1);
    function **table = NULL;
    unsigned size = 0;
    if (callbacks->get_module(0, &table, &size) || callbacks->get_module(7, &table, &size)) return 0;
    for (int module = 1; module < 7; ++module) {
        if (!callbacks->get_module(module, NULL, NULL) || !callbacks->get_module(module, &table, &size)) return 0;
        if (size != sizes[module] || table[0] || table[size]) return 0;
        for (unsigned place = 1; place < size; ++place) {
            if (!table[place]) return 0;
        }
    }
    callbacks->get_module(5, &table, &size);
    *table[12] = (function)create_domain;
    *table[2] = (function)start_range;
    *table[3] = (function)end_range;
    out = fopen(path, "w");
    return out != NULL;
}
