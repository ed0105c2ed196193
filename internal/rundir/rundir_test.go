//go:build unix

package rundir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

const config = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"

// tensors returns the bytes of a safetensors file whose data depend on the step.
func tensors(step, n int) []byte {
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(step*31+i*7))
	}
	return b
}

// save saves a checkpoint of two files.
func save(r *Run, step int) error {
	m := Manifest{Step: step, Trainer: "ppo", ConfigSHA256: config, Variant: "reference", RNG: map[string]uint64{"sample": uint64(step) << 40}}
	return r.Save(fmt.Sprintf("step_%d", step), m, []File{
		{"adapter_model.safetensors", func(w io.Writer) error { _, err := w.Write(tensors(step, 300)); return err }},
		{"state.json", func(w io.Writer) error { _, err := fmt.Fprintf(w, "{\"step\": %d}\n", step); return err }},
	})
}

func open(t *testing.T, path string, o Options) *Run {
	t.Helper()
	r, err := Create(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// newest requires that the newest checkpoint is whole in fact, not only by its manifest, and returns its step, 0 for none.
func newest(t *testing.T, path string) int {
	t.Helper()
	c, _, err := Newest(path)
	require.NoError(t, err)
	if c == nil {
		return 0
	}
	got, err := os.ReadFile(filepath.Join(c.Path, "adapter_model.safetensors"))
	require.NoError(t, err)
	require.Equal(t, tensors(c.Manifest.Step, 300), got)
	got, err = os.ReadFile(filepath.Join(c.Path, "state.json"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("{\"step\": %d}\n", c.Manifest.Step), string(got))
	return c.Manifest.Step
}

func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "run")
	r := open(t, path, Options{Keep: 2})
	require.Equal(t, 0, newest(t, path))
	for step := 1; step <= 4; step++ {
		require.NoError(t, save(r, step))
		require.Equal(t, step, newest(t, path))
		latest, err := os.ReadFile(filepath.Join(path, "latest"))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("step_%d\n", step), string(latest))
	}
	names, err := OS{}.Names(path)
	require.NoError(t, err)
	require.Equal(t, []string{"LOCK", "latest", "step_3", "step_4"}, names)
	c, err := Verify(filepath.Join(path, "step_4"))
	require.NoError(t, err)
	require.Equal(t, "step_3", c.Manifest.Parent)
	require.Equal(t, uint64(4)<<40, c.Manifest.RNG["sample"])
	require.ErrorIs(t, save(r, 4), fs.ErrExist)
	require.NoError(t, r.Save("final", Manifest{Step: 4}, nil))
	c, _, err = Newest(path)
	require.NoError(t, err)
	require.Equal(t, "final", c.Name)
	require.Panics(t, func() { r.Save("step_05", Manifest{}, nil) })
	require.Panics(t, func() { r.Save("step_5", Manifest{}, []File{{"../x", nil}}) })
}

func TestHeaderDigest(t *testing.T) {
	a, b := tensors(1, 300), tensors(2, 300)
	for _, cut := range []int{1, 3, 7, 8, 9, 20, len(a)} { // the sizes of the writes do not matter
		entry := func(text []byte) Entry {
			r := open(t, t.TempDir(), Options{})
			require.NoError(t, r.Save("step_1", Manifest{Step: 1}, []File{{"m.safetensors", func(w io.Writer) error {
				for len(text) > 0 {
					n := min(cut, len(text))
					if _, err := w.Write(text[:n]); err != nil {
						return err
					}
					text = text[n:]
				}
				return nil
			}}}))
			c, err := Verify(filepath.Join(r.Path(), "step_1"))
			require.NoError(t, err)
			return c.Manifest.Files["m.safetensors"]
		}
		x, y := entry(a), entry(b)
		require.Equal(t, x.Header, y.Header, "same names, types and shapes")
		require.NotEqual(t, x.SHA256, y.SHA256)
		require.NotEqual(t, x.Header, entry(tensors(1, 301)).Header)
	}
}

func TestLock(t *testing.T) {
	path := t.TempDir()
	r := open(t, path, Options{})
	_, err := Create(path, Options{})
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, fmt.Sprint(os.Getpid()), locked.Holder)
	require.NoError(t, r.Close())
	open(t, path, Options{})
}

func TestSweep(t *testing.T) {
	path := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(path, "step_7.tmp-123"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(path, "latest.tmp-123"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(path, "notes.tmp-x"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(path, "thesis.tmp-2024"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(path, ".env.json.plumbline-0.tmp"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(path, ".mine.plumbline-0.tmp"), nil, 0o644))
	open(t, path, Options{})
	names, err := OS{}.Names(path)
	require.NoError(t, err)
	require.Equal(t, []string{".mine.plumbline-0.tmp", "LOCK", "notes.tmp-x", "thesis.tmp-2024"}, names)
}

func TestResume(t *testing.T) {
	path := t.TempDir()
	r := open(t, path, Options{})
	for step := 1; step <= 3; step++ {
		require.NoError(t, save(r, step))
	}
	require.NoError(t, os.Truncate(filepath.Join(path, "step_3", "state.json"), 3))
	c, refused, err := Newest(path)
	require.NoError(t, err)
	require.Equal(t, 2, c.Manifest.Step)
	require.Len(t, refused, 1)
	require.Equal(t, "step_3", refused[0].Name)
	require.ErrorContains(t, refused[0].Err, "state.json: has 3 bytes, its manifest says 12")
	for range 2 { // a future that is trained anew twice keeps both
		aside, err := r.Resume(c)
		require.NoError(t, err)
		require.Len(t, aside, 1)
		latest, err := os.ReadFile(filepath.Join(path, "latest"))
		require.NoError(t, err)
		require.Equal(t, "step_2\n", string(latest))
		require.NoError(t, save(r, 3))
		require.Equal(t, 3, newest(t, path))
		m, err := Verify(filepath.Join(path, "step_3"))
		require.NoError(t, err)
		require.Equal(t, "step_2", m.Manifest.Parent)
	}
	names, err := OS{}.Names(path)
	require.NoError(t, err)
	require.Subset(t, names, []string{"step_3.aside-1", "step_3.aside-2", "step_3"})
}

// TestRefused flips, cuts, adds, removes and renames: nothing that differs from what was saved is accepted.
func TestRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	require.NoError(t, save(open(t, path, Options{}), 5))
	dir := filepath.Join(path, "step_5")
	file := func(name string) string { return filepath.Join(dir, name) }
	original := map[string][]byte{}
	for _, name := range []string{"adapter_model.safetensors", "state.json", ManifestName} {
		b, err := os.ReadFile(file(name))
		require.NoError(t, err)
		original[name] = b
	}
	restore := func() {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.Mkdir(dir, 0o755))
		for name, b := range original {
			require.NoError(t, os.WriteFile(file(name), b, 0o644))
		}
		_, err := Verify(dir)
		require.NoError(t, err)
	}
	refused := func(what string, wants ...string) {
		t.Helper()
		_, err := Verify(dir)
		require.Error(t, err, what)
		for _, want := range wants {
			require.ErrorContains(t, err, want, what)
		}
		restore()
	}
	restore()
	rng := rand.New(rand.NewPCG(1, 2))
	for name, b := range original {
		for range 300 {
			bit := rng.IntN(len(b) * 8)
			changed := append([]byte(nil), b...)
			changed[bit/8] ^= 1 << (bit % 8)
			require.NoError(t, os.WriteFile(file(name), changed, 0o644))
			_, err := Verify(dir)
			require.Error(t, err, "%s bit %d", name, bit)
		}
		for n := 0; n < len(b); n += 1 + len(b)/50 {
			require.NoError(t, os.WriteFile(file(name), b[:n], 0o644))
			_, err := Verify(dir)
			require.Error(t, err, "%s cut to %d", name, n)
		}
		restore()
	}
	require.NoError(t, os.WriteFile(file("more.bin"), nil, 0o644))
	refused("a file more", `"more.bin"`)
	require.NoError(t, os.Remove(file("state.json")))
	refused("a file less", "lacks state.json")
	require.NoError(t, os.Remove(file(ManifestName)))
	refused("no manifest", "the save did not end")
	require.NoError(t, os.Rename(file("state.json"), filepath.Join(path, "elsewhere")))
	require.NoError(t, os.Symlink("../elsewhere", file("state.json")))
	refused("a link", "state.json", "no regular file")
	require.NoError(t, syscall.Mkfifo(filepath.Join(path, "pipe"), 0o644))
	require.NoError(t, os.Remove(file("state.json")))
	require.NoError(t, os.Rename(filepath.Join(path, "pipe"), file("state.json")))
	refused("a pipe", "no regular file")
	require.NoError(t, os.Rename(dir, filepath.Join(path, "step_6")))
	_, err := Verify(filepath.Join(path, "step_6"))
	require.ErrorContains(t, err, "is of step 5")
	require.True(t, format.IsMalformed(err))
}

// broken fails at its n-th operation, once or for good, before or after a part of it was done.
type broken struct {
	OS
	left    int
	forever bool
	err     error
	before  func() // what happens then
}

func (b *broken) fails() bool {
	b.left--
	if b.left == 0 && b.before != nil {
		b.before()
	}
	return b.left == 0 || b.forever && b.left < 0
}

func (b *broken) Mkdir(name string) error {
	if b.fails() {
		return b.err
	}
	return b.OS.Mkdir(name)
}

func (b *broken) Create(name string) (Writer, error) {
	if b.fails() {
		return nil, b.err
	}
	w, err := b.OS.Create(name)
	return &brokenWriter{w, b}, err
}

func (b *broken) Rename(from, to string) error {
	if b.fails() {
		return b.err
	}
	return b.OS.Rename(from, to)
}

func (b *broken) SyncDir(name string) error {
	if b.fails() {
		return b.err
	}
	return b.OS.SyncDir(name)
}

func (b *broken) RemoveAll(name string) error {
	if b.fails() {
		return b.err
	}
	return b.OS.RemoveAll(name)
}

type brokenWriter struct {
	Writer
	disk *broken
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.disk.fails() {
		n, _ := w.Writer.Write(p[:len(p)/2])
		return n, w.disk.err
	}
	return w.Writer.Write(p)
}

func (w *brokenWriter) Sync() error {
	if w.disk.fails() {
		return w.disk.err
	}
	return w.Writer.Sync()
}

func (w *brokenWriter) Close() error {
	if w.disk.fails() {
		w.Writer.Close()
		return w.disk.err
	}
	return w.Writer.Close()
}

// TestDiskErrors lets every operation of a save fail: from then on, as a full disk does, or once.
func TestDiskErrors(t *testing.T) {
	for _, errno := range []error{syscall.ENOSPC, syscall.EIO} {
		forever := errno == syscall.ENOSPC
		for n := 1; ; n++ {
			path := t.TempDir()
			disk := &broken{err: errno}
			r := open(t, path, Options{Keep: 2, Disk: disk})
			require.NoError(t, save(r, 1))
			require.NoError(t, save(r, 2))
			disk.left, disk.forever = n, forever
			err := save(r, 3)
			if disk.left > 0 {
				require.NoError(t, err)
				require.Greater(t, n, 20, "operations of a save")
				break
			}
			require.ErrorIs(t, err, errno, "operation %d", n)
			_, statErr := os.Stat(filepath.Join(path, "step_3"))
			if statErr == nil {
				require.Equal(t, 3, newest(t, path))
			} else {
				require.Equal(t, 2, newest(t, path), "operation %d", n)
			}
			disk.left, disk.forever = 0, false
			if errors.Is(statErr, fs.ErrNotExist) && !forever {
				require.NoError(t, save(r, 3), "operation %d: the next attempt", n)
			}
		}
	}
}

func TestNoSpace(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		require.Empty(t, os.Getenv("CI"), "a lock is not tried: no /dev/full here")
		t.Skip("no /dev/full here")
	}
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	l := &Log{f}
	require.ErrorIs(t, l.Append(Field{"step", 1}), syscall.ENOSPC)
	require.NoError(t, l.Close())
}

func TestManifest(t *testing.T) {
	m := &Manifest{Schema: 1, Step: 3, Files: map[string]Entry{"a": {Size: 1, SHA256: config}}, RNG: map[string]uint64{"x": 1<<64 - 1}}
	text := string(m.encode())
	again, err := parseManifest("m", []byte(text))
	require.NoError(t, err)
	require.Equal(t, m, again)
	for from, to := range map[string]string{
		`"schema": 1`: `"schema": 2`, `"step": 3`: `"step": -3`, `"step": 3,`: ``, `"size": 1`: `"size": 1, "mode": 7`, `"a"`: `"../a"`,
		`"size": 1,`: ``, `"x": 18446744073709551615`: `"x": 18446744073709551616`, `6b86`: `6B86`, `"rng"`: `"rgn"`, "}\n": "}{}\n",
	} {
		require.Contains(t, text, from)
		_, err := parseManifest("m", []byte(strings.Replace(text, from, to, 1)))
		require.True(t, format.IsMalformed(err), "%s -> %s: %v", from, to, err)
	}
}

// Lists of millions are refused while they are read, not when the manifest has been written again to be compared.
func TestManifestLists(t *testing.T) {
	for _, head := range []string{`{"rng":{`, `{"files":{`} {
		var b strings.Builder
		b.WriteString(head)
		for i := range 100_000 {
			if head == `{"rng":{` {
				fmt.Fprintf(&b, `"%d":0,`, i)
			} else {
				fmt.Fprintf(&b, `"%d":{"size":0,"sha256":"%s"},`, i, config)
			}
		}
		_, err := parseManifest("m", []byte(b.String()))
		require.True(t, format.IsMalformed(err), "%v", err)
		require.ErrorContains(t, err, "more than")
	}
}

func FuzzManifest(f *testing.F) {
	m := &Manifest{Schema: 1, Step: 3, Files: map[string]Entry{"a": {Size: 1, SHA256: config}}, RNG: map[string]uint64{"x": 1}}
	f.Add(m.encode())
	f.Add([]byte(`{"schema":1,"files":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest("m", data)
		if err == nil && string(m.encode()) != string(data) {
			t.Fatalf("accepted what is not written so: %q", data)
		}
	})
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	r := open(t, path, Options{})
	require.NoError(t, r.Save("final", Manifest{Step: 3}, nil))
	c, _, err := Newest(path)
	require.NoError(t, err)
	require.NoError(t, r.Reopen(c))
	require.Equal(t, "step_3", c.Name)
	require.NoError(t, r.Save("final", Manifest{Step: 5}, nil))
	again, refused, err := Newest(path)
	require.NoError(t, err)
	require.Empty(t, refused)
	require.Equal(t, "step_3", again.Manifest.Parent)
	_, err = Verify(filepath.Join(path, "step_3"))
	require.NoError(t, err)
	require.Panics(t, func() { r.Reopen(c) })
}
