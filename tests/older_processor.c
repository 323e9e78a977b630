/* Makes every program that loads it (LD_PRELOAD) take this x86 processor for one that has AVX2 and
 * nothing newer: no AVX-512, no VNNI, no bfloat16, no AMX.
 *
 * Libraries choose their kernels by the CPUID instruction. Linux lets a thread trap that instruction
 * (arch_prctl, ARCH_SET_CPUID), and threads and forked processes inherit the trap. The handler here
 * answers as the processor does, less the newer features. Programs run at their usual speed. A
 * library that reads /proc/cpuinfo gets a copy with the same features left out.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

static struct sigaction others; /* the handler that the program believes to have set */

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static FILE *(*real_fopen)(const char *, const char *);

static void find_real(void) {
    real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_fopen = dlsym(RTLD_NEXT, "fopen64");
}

/* CPUID */

static void hide(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    if (leaf == 7 && subleaf == 0) {
        *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)); /* AVX-512 */
        *c &= ~(BIT(1) | BIT(6) | BIT(8) | BIT(9) | BIT(10) | BIT(11) | BIT(12) | BIT(14)); /* its additions, VNNI */
        *d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)); /* AVX512-FP16, AMX */
    } else if (leaf == 7) {
        *a = *b = *c = *d = 0; /* AVX-VNNI, bfloat16, AVX10 */
    } else if (leaf == 0xd && subleaf == 0) {
        *a &= 7; /* states of x87, SSE and AVX */
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) {
        *a = *b = *c = *d = 0; /* AMX, AVX10 */
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
    int is_general_protection = registers[REG_TRAPNO] == 13;
    if (info->si_code > 0 && is_general_protection && instruction[0] == 0x0f && instruction[1] == 0xa2) {
        unsigned leaf = registers[REG_RAX], subleaf = registers[REG_RCX], a, b, c, d;
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
        __cpuid_count(leaf, subleaf, a, b, c, d);
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
        hide(leaf, subleaf, &a, &b, &c, &d);
        registers[REG_RAX] = a;
        registers[REG_RBX] = b;
        registers[REG_RCX] = c;
        registers[REG_RDX] = d;
        registers[REG_RIP] += 2;
        return;
    }

    /* A fault of the program's own */
    if (others.sa_flags & SA_SIGINFO) {
        others.sa_sigaction(number, info, context);
    } else if (others.sa_handler != SIG_DFL && others.sa_handler != SIG_IGN) {
        others.sa_handler(number);
    } else {
        struct sigaction standard = {.sa_handler = SIG_DFL};
        real_sigaction(SIGSEGV, &standard, NULL);
        raise(number);
    }
}

__attribute__((constructor)) static void start(void) {
    find_real();
    struct sigaction own = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    real_sigaction(SIGSEGV, &own, NULL);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
}

/* The trap stays when a program sets a handler of its own, as Python's faulthandler does */

int sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
    if (!real_sigaction)
        find_real();
    if (number != SIGSEGV)
        return real_sigaction(number, wanted, before);
    struct sigaction known = others;
    if (wanted)
        others = *wanted;
    if (before)
        *before = known;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction wanted = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    return sigaction(number, &wanted, &before) ? SIG_ERR : before.sa_handler;
}

/* /proc/cpuinfo */

static int is_cpuinfo(const char *path) { return path && !strcmp(path, "/proc/cpuinfo"); }

static int is_newer(const char *word) {
    static const char *const starts[] = {"avx512", "avx_vnni", "avx_ifma", "amx_", "gfni", "vaes", "vpclmulqdq", "avx10"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (!strncmp(word, starts[i], strlen(starts[i])))
            return 1;
    return 0;
}

static int open_cpuinfo(void) {
    FILE *from = real_fopen("/proc/cpuinfo", "re");
    int to = memfd_create("cpuinfo", MFD_CLOEXEC);
    char line[1 << 15];
    while (from && fgets(line, sizeof line, from)) {
        if (strncmp(line, "flags", 5)) {
            dprintf(to, "%s", line);
            continue;
        }
        char *value = strchr(line, ':'), *rest = NULL;
        dprintf(to, "%.*s:", (int)(value - line), line);
        for (char *word = strtok_r(value + 1, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
            if (!is_newer(word))
                dprintf(to, " %s", word);
        dprintf(to, "\n");
    }
    if (from)
        fclose(from);
    lseek(to, 0, SEEK_SET);
    return to;
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name, parameters, path, call) \
    int name parameters {                  \
        if (!real_open)                    \
            find_real();                   \
        if (is_cpuinfo(path))              \
            return open_cpuinfo();         \
        va_list rest;                      \
        va_start(rest, flags);             \
        mode_t mode = mode_of(flags, rest);\
        va_end(rest);                      \
        return call;                       \
    }

OPEN(open, (const char *path, int flags, ...), path, real_open(path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), path, real_open(path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), path, real_openat(folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), path, real_openat(folder, path, flags, mode))

FILE *fopen(const char *path, const char *mode) {
    if (!real_fopen)
        find_real();
    return is_cpuinfo(path) ? fdopen(open_cpuinfo(), "r") : real_fopen(path, mode);
}

FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }
