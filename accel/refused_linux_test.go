//go:build amd64 && !purego

package accel_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"plumbline/accel"
	"plumbline/accel/cpu"
	"plumbline/verify/op"
)

// chosenOnly makes the test binary print what it would use, as JSON, and hold it against the specifications; refuseTiles has the operating system
// refuse tiles before.
const (
	chosenOnly  = "PLUMBLINE_TEST_CHOSEN_ONLY"
	refuseTiles = "refuse tiles"
)

// choice is the variant in use of every op, and why each other cannot run.
type choice struct {
	Used    map[string]string            // by op
	Missing map[string]map[string]string // by op and variant
}

// init installs a filter of system calls under which arch_prctl(ARCH_REQ_XCOMP_PERM) fails with EPERM, as a sandbox may have it. It holds for
// every thread of the process until its end.
func init() {
	if os.Getenv(chosenOnly) != refuseTiles {
		return
	}
	const sysArchPrctl, requestPermission, auditX8664 = 158, 0x1023, 0xc000003e
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
	}
	end := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{ // struct seccomp_data: nr at 0, arch at 4, args[0] at 16
		load(4), unless(auditX8664, 5),
		load(0), unless(sysArchPrctl, 3),
		load(16), unless(requestPermission, 1),
		end(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)),
		end(unix.SECCOMP_RET_ALLOW),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		panic(errno)
	}
	runtime.KeepAlive(filter)
}

func TestChosenOnly(t *testing.T) {
	if os.Getenv(chosenOnly) == "" {
		t.Skip("runs in a process of its own: see TestFeaturesThatAreNotThere")
	}
	c := choice{map[string]string{}, map[string]map[string]string{}}
	for _, o := range append(products, rowOps()...) {
		o.Test(t, "in use", 3, 5)
	}
	for _, name := range accel.Ops() {
		c.Missing[name] = map[string]string{}
		for _, v := range accel.Variants(name) {
			if c.Missing[name][v.Name] = v.Missing; v.Used {
				c.Used[name] = v.Name
			}
		}
	}
	text, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(os.Getenv(chosenOnly+"_OUT"), text, 0o644))
}

// A feature that the processor does not say, or tiles that the operating system refuses, leave the best of the others in use, which is right;
// VERIFY_REQUIRE of what is gone is a failure that gives the reason.
func TestFeaturesThatAreNotThere(t *testing.T) {
	for _, c := range []struct {
		name, without string // of GODEBUG
		i8, f32       string // what is used at most
		gone, says    string
		need          cpu.Feature
	}{
		{"tiles refused", "", "avx512vnni", "avx512", "amx", "the operating system refuses AMX tiles: operation not permitted", cpu.AMX},
		{"no VNNI, no tiles", "cpu.avx512vnni=off,cpu.amxtile=off", "avx2", "avx512", "avx512vnni", "has no AVX512-VNNI", cpu.AVX512VNNI},
		{"no AVX512", "cpu.avx512f=off", "avx2", "avx2", "avx512vnni", "has no AVX512-VNNI", cpu.AVX512},
		{"no FMA", "cpu.avx512f=off,cpu.fma=off", "generic", "generic", "avx2", "has no AVX2 and FMA", cpu.AVX2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why := cpu.Missing(c.need); why != "" {
				op.Skip(t, c.gone, why) // nothing to take away
			}
			out := t.TempDir() + "/choice.json"
			run := func(test string, more ...string) (string, error) {
				cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^("+test+")$")
				how := refuseTiles
				if c.without != "" {
					how = "GODEBUG"
				}
				cmd.Env = append(append(os.Environ(), chosenOnly+"="+how, chosenOnly+"_OUT="+out, "GODEBUG="+c.without, op.RequireEnv+"="), more...)
				text, err := cmd.CombinedOutput()
				return string(text), err
			}
			text, err := run("TestChosenOnly")
			require.NoError(t, err, text)
			data, err := os.ReadFile(out)
			require.NoError(t, err)
			var got choice
			require.NoError(t, json.Unmarshal(data, &got))
			require.Equal(t, c.i8, got.Used["i8.Gemm"])
			require.Equal(t, c.f32, got.Used["f32.Gemm"])
			require.Contains(t, got.Missing["i8.Gemm"][c.gone], c.says)
			for name, used := range got.Used {
				require.Empty(t, got.Missing[name][used], name)
			}
			text, err = run("TestRequired", op.RequireEnv+"="+c.gone)
			require.Error(t, err, "%s was required and is not there", c.gone)
			require.True(t, strings.Contains(text, c.says), text)
		})
	}
}
