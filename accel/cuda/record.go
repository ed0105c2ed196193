package cuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// Recorder is a device whose results are kept: what the host downloads, in order.
type Recorder struct {
	Device
	Outputs [][]byte
}

// Download implements [Device].
func (r *Recorder) Download(dst []byte, src Pointer) error {
	if err := r.Device.Download(dst, src); err != nil {
		return err
	}
	r.Outputs = append(r.Outputs, bytes.Clone(dst))
	return nil
}

// Playback is a device that computes nothing: what the host downloads is what another device gave. Its ops therefore give the results of that
// device, for a spec to judge.
type Playback struct {
	Outputs [][]byte // of the calls to come
	next    Pointer
}

var errPlayback = fmt.Errorf("cuda: the record has other outputs than the op asks for")

// Name says that nothing runs here.
func (p *Playback) Name() string { return "a record" }

// Variant is "record".
func (p *Playback) Variant() string { return "record" }

// Memory implements [Device].
func (p *Playback) Memory() (free, total int64, err error) { return 1 << 40, 1 << 40, nil }

// Alloc implements [Device]: addresses that nothing is stored at.
func (p *Playback) Alloc(n int64) (Pointer, error) {
	p.next += Pointer(n+255) &^ 255
	return p.next, nil
}

// Free implements [Device].
func (p *Playback) Free(Pointer) error { return nil }

// Upload implements [Device].
func (p *Playback) Upload(Pointer, []byte) error { return nil }

// Download returns the next output of the record.
func (p *Playback) Download(dst []byte, _ Pointer) error {
	if len(p.Outputs) == 0 || len(p.Outputs[0]) != len(dst) {
		return errPlayback
	}
	copy(dst, p.Outputs[0])
	p.Outputs = p.Outputs[1:]
	return nil
}

// Load implements [Device].
func (p *Playback) Load(string) (Module, error) { return playbackModule{}, nil }

// Synchronize implements [Device].
func (p *Playback) Synchronize() error { return nil }

// Close implements [Device].
func (p *Playback) Close() error { return nil }

type playbackModule struct{}

func (playbackModule) Kernel(string) (Kernel, error) { return playbackModule{}, nil }

func (playbackModule) Launch(_, _ [3]int, _ int, _ ...any) error { return nil }

// ModuleOf returns the module that has a kernel.
func ModuleOf(kernel string) (string, error) {
	for _, name := range Kernels() {
		text, err := PTX(name)
		if err != nil {
			return "", err
		}
		m, err := parse(text)
		if err != nil {
			return "", err
		}
		if slices.Contains(m.Kernels(), kernel) {
			return name, nil
		}
	}
	return "", fmt.Errorf("cuda: no module has a kernel %q", kernel)
}

// PTXHash is the sha256 of a module's text, which a certificate holds for: its first line repeats the hash of its source.
func PTXHash(name string) (string, error) {
	text, err := PTX(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:]), nil
}
