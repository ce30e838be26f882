// Runs a command and interferes with one of its system calls. Counts the calls of all its threads and
// processes that change files in FOLDER. Call number AT, from 1, is not made: the command is killed before
// it, or the call fails.
//
//   tracer FOLDER REPORT none
//   tracer FOLDER REPORT kill AT
//   tracer FOLDER REPORT ERRNO AT      with the number of an error
//
// followed by the command. REPORT receives the number of counted calls and the name of call AT. Ends as the
// command does: with its exit code, or by the same signal. Exit code 99: tracing is not possible here.

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <elf.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int NOT_POSSIBLE = 99;

// Arguments that name the file which a call changes.
enum class Names { Path, AtPath, OpenPath, OpenAtPath, Descriptor };

struct Call {
    long number;
    const char* name;
    Names names;
};

const Call CALLS[] = {
    {SYS_openat, "openat", Names::OpenAtPath},
    {SYS_write, "write", Names::Descriptor},
    {SYS_writev, "writev", Names::Descriptor},
    {SYS_pwrite64, "pwrite64", Names::Descriptor},
    {SYS_fsync, "fsync", Names::Descriptor},
    {SYS_fdatasync, "fdatasync", Names::Descriptor},
    {SYS_ftruncate, "ftruncate", Names::Descriptor},
    {SYS_fallocate, "fallocate", Names::Descriptor},
    {SYS_sendfile, "sendfile", Names::Descriptor},
    {SYS_mkdirat, "mkdirat", Names::AtPath},
    {SYS_unlinkat, "unlinkat", Names::AtPath},
    {SYS_renameat2, "renameat2", Names::AtPath},
    {SYS_linkat, "linkat", Names::AtPath},
#ifdef SYS_open // processors that have the older calls too
    {SYS_open, "open", Names::OpenPath},
    {SYS_mkdir, "mkdir", Names::Path},
    {SYS_rmdir, "rmdir", Names::Path},
    {SYS_unlink, "unlink", Names::Path},
    {SYS_rename, "rename", Names::Path},
    {SYS_link, "link", Names::Path},
#endif
#ifdef SYS_renameat
    {SYS_renameat, "renameat", Names::AtPath},
#endif
};
constexpr unsigned COUNT = sizeof CALLS / sizeof CALLS[0];

// The child: its calls above stop it, all others run at full speed.
void filter_calls() {
    sock_filter filter[2 * COUNT + 2];
    unsigned at = 0;
    filter[at++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    for (const Call& call : CALLS) {
        filter[at++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, unsigned(call.number), 0, 1);
        filter[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    filter[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const sock_fprog program = {static_cast<unsigned short>(at), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        _exit(NOT_POSSIBLE);
    }
}

std::string link_of(pid_t thread, const std::string& name) {
    const std::string link = "/proc/" + std::to_string(thread) + "/" + name;
    char target[4096];
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    return length < 0 ? std::string() : std::string(target, size_t(length));
}

// Text in the memory of a thread.
std::string text_at(pid_t thread, std::uint64_t address) {
    std::string text;
    while (text.size() < 4096) {
        char part[64];
        // Reads up to the end of a page: the next one may not be mapped.
        const size_t size = std::min(sizeof part, size_t(4096 - address % 4096));
        const iovec here = {part, size};
        const iovec there = {reinterpret_cast<void*>(address), size};
        const ssize_t got = process_vm_readv(thread, &here, 1, &there, 1, 0);
        if (got <= 0) {
            break;
        }
        const size_t length = strnlen(part, size_t(got));
        text.append(part, length);
        if (length < size_t(got)) {
            break;
        }
        address += size_t(got);
    }
    return text;
}

std::string path_at(pid_t thread, int folder, std::uint64_t address) {
    const std::string path = text_at(thread, address);
    if (!path.empty() && path[0] == '/') {
        return path;
    }
    const std::string start = folder == AT_FDCWD ? "cwd" : "fd/" + std::to_string(folder);
    return link_of(thread, start) + "/" + path;
}

// File that a stopped call changes; empty if it changes none.
std::string changed_file(pid_t thread, const Call& call, const std::uint64_t* args) {
    const auto changes = [](std::uint64_t flags) { return (flags & (O_CREAT | O_TRUNC)) != 0; };
    switch (call.names) {
    case Names::Descriptor: return link_of(thread, "fd/" + std::to_string(int(args[0])));
    case Names::Path: return path_at(thread, AT_FDCWD, args[0]);
    case Names::AtPath: return path_at(thread, int(args[0]), args[1]);
    case Names::OpenPath: return changes(args[1]) ? path_at(thread, AT_FDCWD, args[0]) : "";
    case Names::OpenAtPath: return changes(args[2]) ? path_at(thread, int(args[0]), args[1]) : "";
    }
    return "";
}

// Skips the call at which a thread is stopped, and gives it a result.
void fail_call(pid_t thread, int error) {
#if defined(__x86_64__)
    user_regs_struct registers;
    iovec io = {&registers, sizeof registers};
    ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &io);
    registers.orig_rax = ~0ull;
    registers.rax = static_cast<unsigned long long>(-static_cast<long long>(error));
    ptrace(PTRACE_SETREGSET, thread, NT_PRSTATUS, &io);
#elif defined(__aarch64__)
    int none = -1;
    iovec number = {&none, sizeof none};
    ptrace(PTRACE_SETREGSET, thread, NT_ARM_SYSTEM_CALL, &number);
    user_regs_struct registers;
    iovec io = {&registers, sizeof registers};
    ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &io);
    registers.regs[0] = static_cast<unsigned long long>(-static_cast<long long>(error));
    ptrace(PTRACE_SETREGSET, thread, NT_PRSTATUS, &io);
#else
#error "a processor whose registers are not known here"
#endif
}

struct Tracer {
    std::string folder;
    long at = 0;
    int error = 0; // 0: kill
    long calls = 0;
    std::string name;

    bool is_inside(const std::string& path) const {
        return path.compare(0, folder.size(), folder) == 0 && (path.size() == folder.size() || path[folder.size()] == '/');
    }

    void stopped_at_call(pid_t child, pid_t thread) {
        __ptrace_syscall_info info;
        if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_SECCOMP) {
            return;
        }
        for (const Call& call : CALLS) {
            if (call.number != long(info.seccomp.nr) || !is_inside(changed_file(thread, call, info.seccomp.args))) {
                continue;
            }
            if (++calls == at) {
                name = call.name;
                if (error == 0) {
                    kill(child, SIGKILL);
                } else {
                    fail_call(thread, error);
                }
            }
            return;
        }
    }
};

} // namespace

int main(int argc, char** argv) {
    int word = 1;
    const auto next = [&] { return word < argc ? argv[word++] : nullptr; };
    Tracer tracer;
    char real[PATH_MAX];
    const char* folder = next();
    const char* report = next();
    const char* kind = next();
    if (kind == nullptr || realpath(folder, real) == nullptr) {
        fprintf(stderr, "tracer FOLDER REPORT none|kill AT|ERRNO AT COMMAND\n");
        return 2;
    }
    tracer.folder = real;
    if (strcmp(kind, "none") != 0) {
        tracer.error = strcmp(kind, "kill") == 0 ? 0 : atoi(kind);
        tracer.at = atol(next());
    }

    const pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
            _exit(NOT_POSSIBLE);
        }
        raise(SIGSTOP); // until the tracer has set its options
        filter_calls();
        execvp(argv[word], argv + word);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) {
        return WIFEXITED(status) ? WEXITSTATUS(status) : NOT_POSSIBLE;
    }
    const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                         PTRACE_O_TRACEEXEC | PTRACE_O_TRACESECCOMP;
    if (ptrace(PTRACE_SETOPTIONS, child, nullptr, options) != 0) {
        kill(child, SIGKILL);
        return NOT_POSSIBLE;
    }
    ptrace(PTRACE_CONT, child, nullptr, nullptr);
    int ended = 0;
    for (;;) {
        const pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0) {
            break; // all have ended
        }
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            ended = thread == child ? status : ended;
            continue;
        }
        const int event = status >> 16;
        const int signal = WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP) {
            tracer.stopped_at_call(child, thread);
        }
        // A new thread begins with SIGSTOP; other signals are the command's own.
        const bool own = event == 0 && signal != SIGSTOP && signal != SIGTRAP;
        ptrace(PTRACE_CONT, thread, nullptr, own ? signal : 0);
    }
    FILE* out = fopen(report, "w");
    fprintf(out, "%ld %s\n", tracer.calls, tracer.name.c_str());
    fclose(out);
    if (WIFSIGNALED(ended)) {
        const rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(WTERMSIG(ended), SIG_DFL);
        raise(WTERMSIG(ended));
    }
    return WEXITSTATUS(ended);
}
