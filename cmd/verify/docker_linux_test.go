//go:build slow

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/op"
)

// image is what the last stage of examples/docker/Dockerfile holds, made without a container engine.
type image struct {
	root            string // the folder that is /
	env             []string
	dir             string
	user            int
	entrypoint, cmd []string
}

// ignored reads a .dockerignore: patterns from the root of the context, **/ at any depth.
func ignored(t *testing.T, file string) func(name string) bool {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return func(name string) bool {
		for _, pattern := range strings.Fields(string(text)) {
			base, anywhere := strings.CutPrefix(pattern, "**/")
			if anywhere {
				name = path.Base(name)
			}
			matches, err := path.Match(base, name)
			require.NoError(t, err, pattern)
			if matches {
				return true
			}
		}
		return false
	}
}

// imageOf follows the Dockerfile, each instruction by itself: what is copied is copied from a context of the repository, what is run is run by
// sh with the absolute paths of the stage below a folder. Modules come from the cache alone. An instruction that it does not know fails.
func imageOf(t *testing.T) image {
	context, stage, img := t.TempDir(), t.TempDir(), image{root: t.TempDir()}
	skip := ignored(t, "../../examples/docker/Dockerfile.dockerignore")
	require.NoError(t, filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel("../..", file)
		require.NoError(t, err)
		switch {
		case name == ".":
			return nil
		case skip(filepath.ToSlash(name)):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.Mkdir(filepath.Join(context, name), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		return copyFile(filepath.Join(context, name), file)
	}))
	absolute := regexp.MustCompile(`(\s)/`)
	in, err := os.Open("../../examples/docker/Dockerfile")
	require.NoError(t, err)
	defer in.Close()
	last := false
	for lines := bufio.NewScanner(in); lines.Scan(); {
		word, rest, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if word == "" || word[0] == '#' {
			continue
		}
		args := strings.Fields(rest)
		switch {
		case word == "FROM" && args[0] == "scratch":
			last = true
		case word == "FROM":
			module, err := os.ReadFile("../../go.mod")
			require.NoError(t, err)
			needs := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
			require.True(t, strings.HasPrefix(args[0], "golang:"+string(needs[1])+"-"), "%s, but go.mod needs %s", args[0], needs[1])
		case word == "COPY" && !last: // the context is the working folder of the stage
			for _, source := range args[:len(args)-1] {
				_, err := os.Stat(filepath.Join(context, source))
				require.NoError(t, err)
			}
		case word == "RUN" && rest == "go mod download": // the one instruction that needs the network; what a build needs of it is in the cache
		case word == "RUN" && !last:
			cmd := exec.Command("sh", "-c", absolute.ReplaceAllString(rest, "${1}"+stage+"/"))
			cmd.Dir = context
			cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOPROXY=off", "GOWORK=off")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", rest, out)
		case word == "COPY":
			from := context
			var sources []string
			for _, a := range args[:len(args)-1] {
				switch {
				case a == "--from=build":
					from = stage
				case strings.HasPrefix(a, "--chown="): // as the tests run; the user of the image is held against it below
				default:
					sources = append(sources, a)
				}
			}
			for _, source := range sources {
				copyInto(t, filepath.Join(from, source), img.root, args[len(args)-1])
			}
		case word == "ENV":
			img.env = append(img.env, args...)
		case word == "WORKDIR":
			img.dir = rest
		case word == "USER":
			uid, _, _ := strings.Cut(rest, ":")
			img.user, err = strconv.Atoi(uid)
			require.NoError(t, err)
			require.NotZero(t, img.user)
		case word == "ENTRYPOINT":
			require.NoError(t, json.Unmarshal([]byte(rest), &img.entrypoint))
		case word == "CMD":
			require.NoError(t, json.Unmarshal([]byte(rest), &img.cmd))
		default:
			t.Fatalf("an instruction that this test does not follow: %s", lines.Text())
		}
	}
	return img
}

func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}

// copyInto is COPY: a folder's contents, or a file under its name where the target ends in a slash.
func copyInto(t *testing.T, from, root, to string) {
	target := filepath.Join(root, to)
	info, err := os.Stat(from)
	require.NoError(t, err)
	if !info.IsDir() {
		if strings.HasSuffix(to, "/") {
			target = filepath.Join(target, filepath.Base(from))
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
		require.NoError(t, copyFile(target, from))
		return
	}
	entries, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, e := range entries {
		sub := filepath.Join(target, e.Name())
		require.True(t, e.IsDir(), "only folders lie in %s", from)
		mode, err := e.Info()
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(sub, 0o755))
		require.NoError(t, os.Chmod(sub, mode.Mode()))
	}
}

// runs is docker run --network none: a process that sees nothing but the image, as its user, without a network.
func (img image) runs(t *testing.T, entrypoint []string, args ...string) (out string, code int) {
	words := append(append([]string{}, entrypoint...), args...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env, cmd.Dir = img.env, img.dir
	attr := &syscall.SysProcAttr{Chroot: img.root, Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(img.user), Gid: uint32(img.user)}
	} else { // this user is that of the image in a space of its own
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: img.user, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: img.user, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		if errors.Is(err, syscall.EPERM) {
			op.Skip(t, "namespaces", "no namespace of its own for a process: "+err.Error())
		}
		require.NoError(t, err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// The image of examples/docker, tried by its parts: it is built from a context without what is ignored and with no module from the network, and
// its programs run with nothing beside them, as another user and without a network: the demo that it starts, and the commands of its comment.
func TestDockerfile(t *testing.T) {
	img := imageOf(t)
	work := filepath.Join(img.root, "work")
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(work, img.user, img.user))
	}
	out, code := img.runs(t, img.entrypoint, img.cmd...)
	require.Zero(t, code, out)
	require.Contains(t, out, "7 of 7 as expected")

	require.NoError(t, os.CopyFS(work, os.DirFS("../../golden/demo/clean")))
	out, code = img.runs(t, img.entrypoint, "dump", ".")
	require.Zero(t, code, out)
	require.Contains(t, out, "agree with TRL 1.16.0")

	out, code = img.runs(t, []string{"/usr/local/bin/train"}, "ppo", "training.total_ppo_steps=1", "ppo.rollout_samples=8", "ppo.batch_size=8", "ppo.mini_batch_size=4", "eval.samples=0")
	require.Zero(t, code, out)
	require.Contains(t, out, "step 1/1")
	entries, err := os.ReadDir(filepath.Join(img.root, "tmp"))
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is left")
}
