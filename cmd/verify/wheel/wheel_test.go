package wheel_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/verify/wheel"
)

// unpack returns the files of a wheel in their order.
func unpack(t *testing.T, data []byte) (names []string, files map[string]string, z *zip.Reader) {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	files = map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NotContains(t, files, f.Name)
		names = append(names, f.Name)
		files[f.Name] = string(text)
		require.Equal(t, time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), f.Modified.UTC(), f.Name)
		mode := os.FileMode(0o644)
		if f.Name == "plumbline/bin/verify" {
			mode = 0o755
		}
		require.Equal(t, mode, f.Mode(), f.Name)
	}
	return names, files, z
}

// The Python files of the package, and the frameworks whose hooks are in it.
var (
	modules = []string{"__init__", "__main__", "_check", "_dump", "_pytest", "_run", "_session", "_watch", "_site/sitecustomize", "openrlhf", "trl", "verl"}
	hooked  = []string{"openrlhf", "trl", "trl_dpo", "trl_rloo", "verl"}
)

// structure checks a wheel against the binary distribution format.
func structure(t *testing.T, c *wheel.Contents, data []byte) map[string]string {
	t.Helper()
	names, files, _ := unpack(t, data)
	info := "plumbline_rl-" + c.Version + ".dist-info/"
	require.Equal(t, info+"RECORD", names[len(names)-1])
	var record strings.Builder
	for _, name := range names[:len(names)-1] {
		sum := sha256.Sum256([]byte(files[name]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	require.Equal(t, record.String()+info+"RECORD,,\n", files[info+"RECORD"])

	// The tags of the file name are those of WHEEL.
	m := regexp.MustCompile(`^plumbline_rl-([^-]+)-py3-none-([a-z0-9_.]+)\.whl$`).FindStringSubmatch(c.FileName())
	require.NotNil(t, m, c.FileName())
	require.Equal(t, c.Version, m[1])
	require.Contains(t, files[info+"WHEEL"], "Wheel-Version: 1.0\n")
	require.Contains(t, files[info+"WHEEL"], "Root-Is-Purelib: false\n")
	var tags []string
	for _, tag := range strings.Split(m[2], ".") {
		tags = append(tags, "Tag: py3-none-"+tag)
	}
	require.Contains(t, files[info+"WHEEL"], strings.Join(tags, "\n")+"\n")

	head, _, ok := strings.Cut(files[info+"METADATA"], "\n\n")
	require.True(t, ok)
	for _, line := range []string{"Metadata-Version: 2.4", "Name: plumbline-rl", "Version: " + c.Version, "Requires-Dist: numpy", "License-Expression: Apache-2.0"} {
		require.Contains(t, strings.Split(head, "\n"), line)
	}
	require.Equal(t, "[console_scripts]\nplumbline = plumbline._run:main\nverify = plumbline._check:main\n\n[pytest11]\nplumbline = plumbline._pytest\n", files[info+"entry_points.txt"])
	require.Equal(t, string(c.License), files[info+"licenses/LICENSE"])
	require.Equal(t, string(c.Binary), files["plumbline/bin/verify"])
	for _, name := range modules {
		source, err := os.ReadFile("plumbline/" + name + ".py")
		require.NoError(t, err)
		require.Equal(t, string(source), files["plumbline/"+name+".py"])
	}
	for _, framework := range hooked {
		source, err := os.ReadFile("../export/plumbline_" + framework + ".py")
		require.NoError(t, err)
		require.Equal(t, string(source), files["plumbline/_hook_"+framework+".py"])
	}
	require.Len(t, files, len(modules)+len(hooked)+1+5)
	return files
}

func TestWheel(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range wheel.Platforms() {
		c := &wheel.Contents{Version: "1.2.3", Platform: p, Binary: []byte("\x7fELF " + p.GOARCH), License: []byte("Apache")}
		var first, second bytes.Buffer
		require.NoError(t, c.Write(&first))
		require.NoError(t, c.Write(&second))
		require.Equal(t, first.Bytes(), second.Bytes(), "equal inputs give equal bytes")
		structure(t, c, first.Bytes())
		require.False(t, seen[c.FileName()])
		seen[c.FileName()] = true
	}
	require.Len(t, seen, 4)
	for _, c := range []wheel.Contents{{}, {Version: "1", Binary: []byte("x"), License: []byte("x")}, {Version: "1", Platform: wheel.Platforms()[0], License: []byte("x")}} {
		require.ErrorContains(t, c.Write(io.Discard), "needed")
	}
}

// What [BuildArgs] builds, without cgo, has no library to load and no path of the machine that builds it: no package of it asks the linker for
// a library. The program itself is looked at by the tests of the tag slow.
func TestBuildArgs(t *testing.T) {
	args := wheel.BuildArgs("verify")
	require.Contains(t, args, "-trimpath")
	at := slices.Index(args, "-tags")
	list := func(tags string) []string {
		cmd := exec.Command("go", "list", "-deps", "-tags", tags, "-f", "{{$p := .}}{{range .GoFiles}}{{$p.Dir}}/{{.}}\n{{end}}", args[len(args)-1])
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		out, err := cmd.Output()
		require.NoError(t, err)
		var loads []string
		for _, file := range strings.Fields(string(out)) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			if bytes.Contains(text, []byte("\n//go:cgo_import_dynamic ")) {
				loads = append(loads, file)
			}
		}
		return loads
	}
	require.Empty(t, list(args[at+1]))
	require.NotEmpty(t, list(""), "with the driver of CUDA it loads libraries, or this proves nothing")
}
