package rundir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// ManifestName is the file that says what a checkpoint holds. It is written last, so that a checkpoint without it is none.
const ManifestName = "MANIFEST.json"

// Schema is the version of the manifest.
const Schema = 1

// Limits of a manifest that is read.
const (
	maxManifest = 16 << 20 // bytes
	maxRNG      = 1024     // generators
	maxFiles    = 65_536
)

// Manifest is what a checkpoint says of itself.
type Manifest struct {
	Schema          int               `json:"schema"`
	Step            int               `json:"step"`             // optimiser updates' worth of training that it holds, as the trainer counts them
	Parent          string            `json:"parent"`           // the checkpoint that the run saved or resumed from before, "" for none
	Trainer         string            `json:"trainer"`          // "ppo", "grpo", …
	ConfigSHA256    string            `json:"config_sha256"`    // of the canonical JSON of the configuration
	BaseFingerprint string            `json:"base_fingerprint"` // of the frozen weights, "" where all weights are saved
	Variant         string            `json:"variant"`          // of the arithmetic: "reference", or the kernels; another one rounds otherwise
	RNG             map[string]uint64 `json:"rng"`              // words drawn so far from each generator
	Files           map[string]Entry  `json:"files"`
	SHA256          string            `json:"manifest_sha256"` // of the manifest with "" in this place
}

// Entry is one file of a checkpoint.
type Entry struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Header is the sha256 of the header of a safetensors file, which holds the types and shapes of its tensors; "" for others.
	Header string `json:"header,omitempty"`
}

// encode returns the manifest as it is written: keys in order, one line for every file.
func (m *Manifest) encode() []byte {
	if m.RNG == nil {
		m.RNG = map[string]uint64{}
	}
	indented := func() []byte {
		b, err := json.MarshalIndent(m, "", " ")
		if err != nil {
			panic("rundir: " + err.Error()) // strings and integers only
		}
		return append(b, '\n')
	}
	m.SHA256 = ""
	sum := sha256.Sum256(indented())
	m.SHA256 = hex.EncodeToString(sum[:])
	return indented()
}

// parseManifest reads a manifest. Every key is known and given once, and every value is one that encode could have written.
func parseManifest(file string, data []byte) (*Manifest, error) {
	m := &Manifest{RNG: map[string]uint64{}, Files: map[string]Entry{}}
	s := format.NewScanner(file, data, 0)
	seen := map[string]bool{}
	text := func(to *string) error {
		v, err := s.String()
		*to = v
		return err
	}
	err := s.Object(func(key string) (err error) {
		seen[key] = true
		var n int64
		switch key {
		case "schema":
			if n, err = s.Int(); err == nil && n != Schema {
				return s.Malformed("schema %d, this program reads %d", n, Schema)
			}
			m.Schema = int(n)
		case "step":
			if n, err = s.Int(); err == nil && (n < 0 || n > 1<<40) {
				return s.Malformed("step %d", n)
			}
			m.Step = int(n)
		case "parent":
			err = text(&m.Parent)
		case "trainer":
			err = text(&m.Trainer)
		case "config_sha256":
			err = text(&m.ConfigSHA256)
		case "base_fingerprint":
			err = text(&m.BaseFingerprint)
		case "variant":
			err = text(&m.Variant)
		case "manifest_sha256":
			err = text(&m.SHA256)
		case "rng":
			err = s.Object(func(name string) error {
				if len(m.RNG) == maxRNG {
					return s.Malformed("more than %d generators", maxRNG)
				}
				v, err := s.Uint()
				m.RNG[name] = v
				return err
			})
		case "files":
			err = s.Object(func(name string) error {
				if len(m.Files) == maxFiles {
					return s.Malformed("more than %d files", maxFiles)
				}
				e, err := parseEntry(s, name)
				m.Files[name] = e
				return err
			})
		default:
			return s.Malformed("unknown key %.64q", key)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.End(); err != nil {
		return nil, err
	}
	for _, key := range []string{"schema", "step", "parent", "trainer", "config_sha256", "base_fingerprint", "variant", "rng", "files", "manifest_sha256"} {
		if !seen[key] {
			return nil, format.Malformed(file, "", "no key %q", key)
		}
	}
	if !bytes.Equal(m.encode(), data) { // its hash is among the bytes
		return nil, format.Malformed(file, "", "is not what this program wrote")
	}
	return m, nil
}

func parseEntry(s *format.Scanner, name string) (Entry, error) {
	var e Entry
	if err := checkName(name); err != nil {
		return e, s.Malformed("%v", err)
	}
	err := s.Object(func(key string) (err error) {
		switch key {
		case "size":
			if e.Size, err = s.Int(); err == nil && e.Size < 0 {
				return s.Malformed("size %d", e.Size)
			}
		case "sha256":
			if e.SHA256, err = s.String(); err == nil && !isSHA256(e.SHA256) {
				return s.Malformed("no sha256: %.80q", e.SHA256)
			}
		case "header":
			if e.Header, err = s.String(); err == nil && !isSHA256(e.Header) {
				return s.Malformed("no sha256: %.80q", e.Header)
			}
		default:
			return s.Malformed("unknown key %.64q", key)
		}
		return err
	})
	if err == nil && e.SHA256 == "" {
		return e, s.Malformed("no sha256")
	}
	return e, err
}

func isSHA256(text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == 32 && strings.ToLower(text) == text
}

// checkName refuses what is not the name of a file directly in a checkpoint.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || name == ManifestName || len(name) > 200 || strings.ContainsAny(name, "/\\\x00") {
		return fmt.Errorf("%.80q cannot be a file of a checkpoint", name)
	}
	return nil
}

// names returns the files in order, the manifest among them.
func (m *Manifest) names() []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(m.Files)), ManifestName)))
}
