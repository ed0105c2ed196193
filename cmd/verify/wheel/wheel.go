// Package wheel writes Python wheels that carry the program verify and a module to write dumps and to call it.
//
// A wheel is a zip archive with a folder of metadata (packaging.python.org, binary distribution format 1.0). It is written
// here so that `make wheel` needs Go alone, and so that equal inputs give equal bytes.
package wheel

import (
	"archive/zip"
	"compress/flate"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"plumbline/cmd/verify/export"
)

//go:embed plumbline/*.py plumbline/_site/*.py
var module embed.FS

// Distribution is the name under which the package is published. The name plumbline belongs to another package (of point clouds); what
// is imported is plumbline all the same.
const Distribution = "plumbline-rl"

// stem is the name as file names have it.
var stem = strings.ReplaceAll(Distribution, "-", "_")

// Platform is where a wheel can be installed.
type Platform struct {
	GOOS, GOARCH string
	Tags         []string // of the file name, "manylinux_2_17_x86_64"
}

// Platforms are those that make wheel builds. The program is static, so that any C library will do; Go 1.26 needs macOS 12.
func Platforms() []Platform {
	return []Platform{
		{"linux", "amd64", []string{"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"}},
		{"linux", "arm64", []string{"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"}},
		{"darwin", "amd64", []string{"macosx_12_0_x86_64"}},
		{"darwin", "arm64", []string{"macosx_12_0_arm64"}},
	}
}

// Contents is what goes into a wheel beside the module.
type Contents struct {
	Version  string // "0.1.0"
	Platform Platform
	Binary   []byte // verify, built for the platform
	License  []byte
}

// FileName returns the name that installers demand: plumbline_rl-0.1.0-py3-none-TAG.TAG.whl.
func (c *Contents) FileName() string {
	return fmt.Sprintf("%s-%s-py3-none-%s.whl", stem, c.Version, strings.Join(c.Platform.Tags, "."))
}

// BuildArgs are the arguments of go, run in the root of the module with CGO_ENABLED=0, that build verify into the file. The
// path and symbols of the machine that builds stay out of it.
func BuildArgs(file string) []string {
	return []string{"build", "-trimpath", "-tags", "nocuda", "-ldflags", "-s -w", "-o", file, "./cmd/verify"}
}

// entryPoints are the programs and the plugin of pytest.
const entryPoints = `[console_scripts]
plumbline = plumbline._run:main
verify = plumbline._check:main

[pytest11]
plumbline = plumbline._pytest
`

// member is a file of the archive.
type member struct {
	name string
	mode fs.FileMode
	data []byte
}

// Write writes the wheel. The bytes depend on the contents and on the version of Go's compressor, on nothing else.
func (c *Contents) Write(w io.Writer) error {
	if c.Version == "" || len(c.Platform.Tags) == 0 || len(c.Binary) == 0 || len(c.License) == 0 {
		return errors.New("wheel: version, tags, binary and licence are needed")
	}
	members, err := c.members()
	if err != nil {
		return err
	}
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
		h.SetMode(m.mode)
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(m.data); err != nil {
			return err
		}
	}
	return z.Close()
}

// members returns the files in their order: the package, then its metadata, RECORD last.
func (c *Contents) members() ([]member, error) {
	var all []member
	err := fs.WalkDir(module, "plumbline", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := module.ReadFile(name)
		all = append(all, member{name, 0o644, data})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, framework := range []string{"openrlhf", "trl", "trl_dpo", "trl_rloo", "verl"} { // the hooks as verify export prints them
		data, err := export.Files.ReadFile("plumbline_" + framework + ".py")
		if err != nil {
			return nil, err
		}
		all = append(all, member{"plumbline/_hook_" + framework + ".py", 0o644, data})
	}
	slices.SortFunc(all, func(a, b member) int { return strings.Compare(a.name, b.name) })
	info := stem + "-" + c.Version + ".dist-info"
	all = append(all,
		member{"plumbline/bin/verify", 0o755, c.Binary},
		member{path.Join(info, "METADATA"), 0o644, []byte(c.metadata())},
		member{path.Join(info, "WHEEL"), 0o644, []byte(c.wheel())},
		member{path.Join(info, "entry_points.txt"), 0o644, []byte(entryPoints)},
		member{path.Join(info, "licenses/LICENSE"), 0o644, c.License},
	)
	record := path.Join(info, "RECORD")
	return append(all, member{record, 0o644, recordOf(all, record)}), nil
}

// recordOf lists every file with its digest and size; RECORD itself has neither. No name holds a comma or quote.
func recordOf(members []member, self string) []byte {
	var b strings.Builder
	for _, m := range members {
		sum := sha256.Sum256(m.data)
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", m.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(m.data))
	}
	fmt.Fprintf(&b, "%s,,\n", self)
	return []byte(b.String())
}

func (c *Contents) wheel() string {
	var b strings.Builder
	b.WriteString("Wheel-Version: 1.0\nGenerator: plumbline\nRoot-Is-Purelib: false\n")
	for _, tag := range c.Platform.Tags {
		fmt.Fprintf(&b, "Tag: py3-none-%s\n", tag)
	}
	return b.String()
}

func (c *Contents) metadata() string {
	return `Metadata-Version: 2.4
Name: ` + Distribution + `
Version: ` + c.Version + `
Summary: says whether reinforcement-learning fine-tuning code computes what it claims to
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.9
Requires-Dist: numpy
Description-Content-Type: text/markdown

Run a training command and hear whether its numbers are right (TRL, verl, OpenRLHF):

    plumbline run train.py

The program verify, and a module for trainers and tests:

    import plumbline
    plumbline.dump("run/", step=step, response_mask=mask, logp_new=logp, advantages=adv, options={"beta": 0.0})
    plumbline.check("run/", profile="trl-grpo@1.16").exit
    plumbline.assert_dump("run/", profile="trl-grpo@1.16")

dump takes numpy, torch and JAX arrays on any device, keeps bfloat16, and never ends a training run.
`
}
