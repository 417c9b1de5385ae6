// Runs a program under a filter of system calls as container runtimes install one: what their default profiles deny to
// a container without capabilities is denied here (EPERM), clone3 does not exist (ENOSYS), and no new namespaces are
// made.
//
//   guest_seccomp_filter PROGRAM ARGUMENTS...
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace {

constexpr long kDenied[] = {SYS_acct,
                            SYS_add_key,
                            SYS_bpf,
                            SYS_chroot,
                            SYS_clock_adjtime,
                            SYS_clock_settime,
                            SYS_delete_module,
                            SYS_fanotify_init,
                            SYS_finit_module,
                            SYS_fsconfig,
                            SYS_fsmount,
                            SYS_fsopen,
                            SYS_fspick,
                            SYS_init_module,
                            SYS_io_uring_enter,
                            SYS_io_uring_register,
                            SYS_io_uring_setup,
                            SYS_ioperm,
                            SYS_iopl,
                            SYS_kcmp,
                            SYS_kexec_file_load,
                            SYS_kexec_load,
                            SYS_keyctl,
                            SYS_mount,
                            SYS_move_mount,
                            SYS_move_pages,
                            SYS_open_by_handle_at,
                            SYS_open_tree,
                            SYS_perf_event_open,
                            SYS_pivot_root,
                            SYS_quotactl,
                            SYS_reboot,
                            SYS_request_key,
                            SYS_setdomainname,
                            SYS_sethostname,
                            SYS_setns,
                            SYS_settimeofday,
                            SYS_swapoff,
                            SYS_swapon,
                            SYS_syslog,
                            SYS_umount2,
                            SYS_unshare,
                            SYS_userfaultfd,
                            SYS_vhangup};

constexpr unsigned kNamespaces =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

void answer(std::vector<sock_filter>& filter, long call, unsigned what) {
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, what));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 99;
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const long call : kDenied) answer(filter, call, SECCOMP_RET_ERRNO | EPERM);
  answer(filter, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
  // clone: allowed unless it asks for a namespace.
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kNamespaces, 0, 1));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    perror("seccomp_filter");
    return 99;
  }
  if (syscall(SYS_unshare, CLONE_NEWNS) == 0 || errno != EPERM) {
    fprintf(stderr, "seccomp_filter: the filter does not hold\n");
    return 99;
  }
  execvp(argv[1], argv + 1);
  perror(argv[1]);
  return 99;
}
