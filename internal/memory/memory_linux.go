package memory

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

func bounds() []bound {
	root := os.DirFS("/")
	list := append(machine(root), groups(root)...)
	return append(list, process(root)...)
}

// machine reads MemAvailable of /proc/meminfo: proc(5).
func machine(root fs.FS) []bound {
	if n, ok := field(root, "proc/meminfo", "MemAvailable:"); ok {
		return []bound{{"available on this machine", n * 1024}}
	}
	return nil
}

// field returns the first number of the line of a file that begins with name.
func field(root fs.FS, file, name string) (float64, bool) {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, name); is {
			if words := strings.Fields(rest); len(words) > 0 {
				n, err := strconv.ParseFloat(words[0], 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// groups returns what every control group leaves in which the process is, of version 2 and of version 1: limit − used + the pages of files
// in use that the kernel takes back first. Kernel documentation, admin-guide/cgroup-v2 and cgroup-v1/memory.
func groups(root fs.FS) (list []bound) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		at, most, used := "sys/fs/cgroup", "memory.max", "memory.current"
		switch {
		case parts[1] == "":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			at, most, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		default:
			continue
		}
		// In a container the path may be that of the host, while the group itself is mounted at the top: every prefix of it is tried.
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			here := path.Join(at, dir)
			limit, ok := number(root, path.Join(here, most))
			if in, is := number(root, path.Join(here, used)); ok && is {
				kept := in
				if file, is := field(root, path.Join(here, "memory.stat"), "inactive_file "); is {
					kept = max(0, in-file)
				}
				list = append(list, bound{"the limit of the control group, " + path.Join("/", here, most), limit - kept})
			}
			if dir == "/" {
				break
			}
		}
	}
	return list
}

// number reads a file of one number. The word max, and numbers that no machine has, are no limit.
func number(root fs.FS, name string) (float64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return n, err == nil && n < 1<<60
}

// process returns what the limits of the address space and of the data of the process leave (getrlimit(2)).
func process(root fs.FS) (list []bound) {
	const rlimitData, rlimitAS = syscall.RLIMIT_DATA, syscall.RLIMIT_AS
	for _, l := range []struct {
		what       int
		used, name string
	}{{rlimitAS, "VmSize:", "the limit of the address space, ulimit -v"}, {rlimitData, "VmData:", "the limit of the data, ulimit -d"}} {
		var r syscall.Rlimit
		if syscall.Getrlimit(l.what, &r) != nil || r.Cur >= 1<<60 {
			continue
		}
		if used, ok := field(root, "proc/self/status", l.used); ok {
			list = append(list, bound{l.name, float64(r.Cur) - used*1024})
		}
	}
	return list
}
