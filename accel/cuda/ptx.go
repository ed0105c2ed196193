package cuda

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strings"
	"sync"

	"plumbline/accel/cuda/ptxsim"
)

// The kernels as text: sources with the header they share, and what the compiler made of them (make ptx).
//
//go:embed *.cu device.cuh *.ptx
var texts embed.FS

// Kernels are the names of the PTX modules, one for each .cu.
func Kernels() []string {
	names, err := fs.Glob(texts, "*.ptx")
	if err != nil {
		panic("cuda: " + err.Error())
	}
	for i, n := range names {
		names[i] = strings.TrimSuffix(n, ".ptx")
	}
	sort.Strings(names)
	return names
}

// PTX returns the text of a module.
func PTX(name string) (string, error) {
	b, err := texts.ReadFile(path.Base(name) + ".ptx")
	if err != nil {
		return "", fmt.Errorf("cuda: no module %q; there are %s", name, strings.Join(Kernels(), ", "))
	}
	return string(b), nil
}

// parsed holds the modules whose PTX was read: the layout of parameters is the same on every device.
var parsed sync.Map

func parse(text string) (*ptxsim.Module, error) {
	if m, ok := parsed.Load(text); ok {
		return m.(*ptxsim.Module), nil
	}
	m, err := ptxsim.Parse(text)
	if err != nil {
		return nil, err
	}
	parsed.Store(text, m)
	return m, nil
}
