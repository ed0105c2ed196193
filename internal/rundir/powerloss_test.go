//go:build unix

package rundir

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// memory is a disk that remembers what was synced. After a power failure everything that was not may be there or not, in any
// combination: the entries of a directory one by one, the bytes of a file as nothing, as they were synced, or as rubbish.
type memory struct {
	dirs map[string]*memoryDir
	ops  int
	stop int // operations after which the power fails; later ones do nothing
}

type memoryDir struct {
	now     map[string]any // *memoryFile or *memoryDir
	pending []func(map[string]any)
	durable map[string]any
}

type memoryFile struct {
	disk         *memory
	data, synced []byte
	isSynced     bool
}

func newMemory(stop int) *memory {
	m := &memory{dirs: map[string]*memoryDir{}, stop: stop}
	m.dirs["."] = newMemoryDir()
	return m
}

func newMemoryDir() *memoryDir { return &memoryDir{now: map[string]any{}, durable: map[string]any{}} }

// off counts an operation and reports whether the power is off.
func (m *memory) off() bool {
	m.ops++
	return m.ops > m.stop
}

func (m *memory) change(name string, do func(entries map[string]any)) {
	d := m.dirs[filepath.Dir(name)]
	do(d.now)
	d.pending = append(d.pending, do)
}

func (m *memory) Mkdir(name string) error {
	if m.off() {
		return nil
	}
	d := newMemoryDir()
	m.dirs[name] = d
	m.change(name, func(entries map[string]any) { entries[filepath.Base(name)] = d })
	return nil
}

func (m *memory) Create(name string) (Writer, error) {
	f := &memoryFile{disk: m}
	if !m.off() {
		m.change(name, func(entries map[string]any) { entries[filepath.Base(name)] = f })
	}
	return f, nil
}

func (f *memoryFile) Write(p []byte) (int, error) {
	if !f.disk.off() {
		f.data = append(f.data, p...)
	}
	return len(p), nil
}

func (f *memoryFile) Sync() error {
	if !f.disk.off() {
		f.synced, f.isSynced = slices.Clone(f.data), true
	}
	return nil
}

func (f *memoryFile) Close() error { return nil }

func (m *memory) Rename(from, to string) error {
	if m.off() {
		return nil
	}
	what := m.dirs[filepath.Dir(from)].now[filepath.Base(from)]
	if d, is := what.(*memoryDir); is {
		m.dirs[to] = d
		delete(m.dirs, from)
	}
	m.change(from, func(entries map[string]any) {
		delete(entries, filepath.Base(from))
		entries[filepath.Base(to)] = what
	})
	return nil
}

func (m *memory) RemoveAll(name string) error {
	if m.off() {
		return nil
	}
	if d := m.dirs[name]; d != nil { // the files first, one by one
		for _, file := range slices.Sorted(maps.Keys(d.now)) {
			if m.off() {
				return nil
			}
			m.change(filepath.Join(name, file), func(entries map[string]any) { delete(entries, file) })
		}
	}
	m.change(name, func(entries map[string]any) { delete(entries, filepath.Base(name)) })
	return nil
}

func (m *memory) SyncDir(name string) error {
	if m.off() {
		return nil
	}
	d := m.dirs[name]
	d.durable, d.pending = maps.Clone(d.now), nil
	return nil
}

func (m *memory) Names(name string) ([]string, error) {
	return slices.Sorted(maps.Keys(m.dirs[name].now)), nil
}

func (m *memory) Exists(name string) (bool, error) {
	_, there := m.dirs[filepath.Dir(name)].now[filepath.Base(name)]
	return there, nil
}

// after writes what is left of a directory after the power failure.
func (d *memoryDir) after(t *testing.T, to string, rng *rand.Rand) {
	require.NoError(t, os.MkdirAll(to, 0o755))
	entries := maps.Clone(d.durable)
	whole := rng.IntN(4) == 0
	for _, do := range d.pending {
		if whole || rng.IntN(2) == 0 {
			do(entries)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		switch what := entries[name].(type) {
		case *memoryDir:
			what.after(t, filepath.Join(to, name), rng)
		case *memoryFile:
			data := what.data
			if !what.isSynced || len(what.data) != len(what.synced) {
				switch rng.IntN(4) {
				case 0:
					data = nil
				case 1:
					data = what.synced
				case 2:
					data = make([]byte, len(what.data))
				}
			}
			require.NoError(t, os.WriteFile(filepath.Join(to, name), data, 0o644))
		}
	}
}

// TestPowerLoss cuts the power after every operation of three saves, each time with several losses: the reader finds the newest
// checkpoint whose save had returned, or the one that was being saved, whole.
func TestPowerLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	lost, kept := 0, 0
	for stop := 0; ; stop++ {
		for range losses {
			disk := newMemory(stop)
			r := &Run{disk: disk, path: ".", keep: 2}
			done := 0
			for step := 1; step <= 3; step++ {
				require.NoError(t, save(r, step))
				if disk.ops <= disk.stop {
					done = step
				}
			}
			path := filepath.Join(t.TempDir(), fmt.Sprint(stop))
			disk.dirs["."].after(t, path, rng)
			got := newest(t, path)
			require.GreaterOrEqual(t, got, done, "after %d operations", stop)
			require.LessOrEqual(t, got, done+1, "after %d operations", stop)
			if got == done {
				lost++
			} else {
				kept++
			}
			if done == 3 {
				require.Greater(t, stop, 50)
				require.Greater(t, min(lost, kept), 20, "both outcomes were seen")
				return
			}
		}
	}
}

// TestPowerLossIsSeen: a save that leaves one kind of sync out is caught.
func TestPowerLossIsSeen(t *testing.T) {
	for name, forget := range map[string]func(m *memory) Disk{
		"files":     func(m *memory) Disk { return noFileSync{m} },
		"directory": func(m *memory) Disk { return noDirSync{m} },
	} {
		rng := rand.New(rand.NewPCG(5, 6))
		caught := false
		for stop := 0; stop < 100 && !caught; stop++ {
			for range losses {
				disk := newMemory(stop)
				r := &Run{disk: forget(disk), path: ".", keep: 1}
				done := 0
				for step := 1; step <= 3; step++ {
					require.NoError(t, save(r, step))
					if disk.ops <= disk.stop {
						done = step
					}
				}
				path := filepath.Join(t.TempDir(), fmt.Sprint(stop))
				disk.dirs["."].after(t, path, rng)
				c, _, err := Newest(path)
				require.NoError(t, err)
				if c == nil && done > 0 || c != nil && c.Manifest.Step < done {
					caught = true
				}
			}
		}
		require.True(t, caught, name)
	}
}

type noDirSync struct{ *memory }

func (noDirSync) SyncDir(string) error { return nil }

type noFileSync struct{ *memory }

func (d noFileSync) Create(name string) (Writer, error) {
	w, err := d.memory.Create(name)
	return unsynced{w}, err
}

type unsynced struct{ Writer }

func (unsynced) Sync() error { return nil }
