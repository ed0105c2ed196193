//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
)

// hostile is a file that the command must survive: an answer within seconds, in memory of the order of the file, with an
// exit code and a message that say what is wrong.
type hostile struct {
	name     string
	path     string                  // of the file, below the folder of the test
	data     []byte                  // its content
	make     func(path string) error // in place of data: a folder, or what is no regular file
	args     string                  // split at white space; FILE is path. "" is --basis FILE
	code     int                     // the exit code; 0 means 4, malformed or refused: see accepted
	says     string                  // a fixed part of what is printed
	inflated int64                   // bytes that its compressed members declare, within the budget
	open     string                  // an open finding: what the program does in place of that
}

// accepted is the code of a file that nothing is wrong with.
const accepted = -1

func (c *hostile) want() int {
	switch c.code {
	case 0:
		return check.ExitMalformed
	case accepted:
		return check.ExitPass
	}
	return c.code
}

func (c *hostile) arguments() []string {
	args := strings.Fields(c.args)
	if c.args == "" {
		args = []string{"--basis", "FILE"}
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "FILE", c.path)
	}
	return append([]string{"projection"}, args...)
}

// write makes the file in dir and returns the bytes of it, of all files if it is a folder.
func (c *hostile) write(t *testing.T, dir string) int64 {
	t.Helper()
	path := filepath.Join(dir, c.path)
	if c.make != nil {
		require.NoError(t, c.make(path))
	} else {
		require.NoError(t, os.WriteFile(path, c.data, 0o666))
	}
	var size int64
	require.NoError(t, filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			info, err = d.Info()
			size += info.Size()
		}
		return err
	}))
	return size
}

// outcome is what a run of the program said and cost.
type outcome struct {
	stdout, stderr string
	code           int           // -1 if it was killed
	took           time.Duration // of the processor: the clock says what else the machine had to do
	peak           int64         // resident bytes at the worst moment
}

// measuring is the variable that makes this test binary run its arguments as a command, kill it after the time that the
// variable says (see hanging), and write the exit code, the time and the peak of its memory to file descriptor 3.
//
// The peak of a process counts that of the one which started it, up to the exec. The tests hold large files, so the program
// is started by a small process between.
const measuring = "VERIFY_TEST_MEASURE"

func init() {
	limit, err := time.ParseDuration(os.Getenv(measuring))
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hanging*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	took := spent(cmd.ProcessState)
	peak := int64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) << 10 // KiB on Linux
	fmt.Fprintln(os.NewFile(3, "outcome"), cmd.ProcessState.ExitCode(), int64(took), peak)
	os.Exit(0)
}

// hanging is how much longer than its limit of processor time a run may take by the clock before it is killed.
const hanging = 20

func spent(p *os.ProcessState) time.Duration { return p.UserTime() + p.SystemTime() }

// measure runs the program in dir and kills it when it hangs.
func measure(t *testing.T, dir string, limit time.Duration, args ...string) (o outcome) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	cmd := exec.Command(self, append([]string{binaryPath}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), measuring+"="+limit.String(), "GOMAXPROCS=1", "GOGC=") // each thread holds a block of 8 MiB
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &out, &errs, []*os.File{w}
	err = cmd.Run()
	w.Close()
	require.NoError(t, err, errs.String())
	_, err = fmt.Fscan(r, &o.code, &o.took, &o.peak)
	require.NoError(t, err)
	o.stdout, o.stderr = out.String(), errs.String()
	return o
}

// within is measure without the memory, which costs less.
func within(t *testing.T, dir string, limit time.Duration, args ...string) (o outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hanging*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binaryPath, args...)
	cmd.Dir = dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	require.NotNil(t, cmd.ProcessState, "%v", err)
	return outcome{stdout: out.String(), stderr: errs.String(), code: cmd.ProcessState.ExitCode(), took: spent(cmd.ProcessState)}
}

// limits is what a run may cost.
type limits struct {
	took time.Duration // of one processor, at least; formats.md 1.1 allows 100 ms for each 64 KiB
	peak int64
	text int // bytes printed without -v, 0: not judged
}

const (
	patience = 5 * time.Second
	room     = 16 << 20 // beside four times the file, formats.md 1.1
	maxText  = 64 << 10 // for a report that is read by people
)

// faults returns what is wrong with the outcome of c in the form of report given.
func (c *hostile) faults(o outcome, form string, most limits) (bad []string) {
	add := func(msg string, args ...any) { bad = append(bad, form+": "+fmt.Sprintf(msg, args...)) }
	text := o.stdout + o.stderr
	if o.took >= most.took {
		add("takes %.1f s, want less than %.0f", o.took.Seconds(), most.took.Seconds())
	}
	if o.code != c.want() {
		add("exit code %d, want %d", o.code, c.want())
	}
	if o.peak > most.peak {
		add("needs %d MiB of memory, want at most %d", o.peak>>20, most.peak>>20)
	}
	if strings.Contains(text, "goroutine ") || strings.Contains(text, "panic") {
		add("ends with a stack trace")
	}
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
	}); i >= 0 {
		add("prints the control character %q", []rune(text[i:])[0])
	}
	switch form {
	case "human":
		if most.text > 0 && len(text) > most.text {
			add("prints %d bytes, want at most %d", len(text), most.text)
		}
		if !strings.Contains(text, c.says) {
			add("does not say %q but %.300q", c.says, text)
		}
	case "json":
		var r struct {
			Exit  *int
			Error string
		}
		if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
			add("is no JSON: %v", err)
		} else if r.Exit == nil || *r.Exit != o.code {
			add("the report does not carry the exit code %d", o.code)
		} else if r.Error == "" && o.code >= check.ExitUsage && o.code <= check.ExitMalformed {
			add("the report has no error")
		}
	case "junit":
		dec := xml.NewDecoder(strings.NewReader(o.stdout))
		elements := map[string]int{}
		var err error
		for err == nil {
			var tok xml.Token
			if tok, err = dec.Token(); err == nil {
				if e, ok := tok.(xml.StartElement); ok {
					elements[e.Name.Local]++
				}
			}
		}
		switch {
		case err != io.EOF:
			add("is no XML: %v", err)
		case o.code == check.ExitMalformed && elements["error"] == 0, o.code == check.ExitFail && elements["failure"] == 0:
			add("exit code %d, but no error or failure in the report", o.code)
		}
	}
	return bad
}

// Each way of being wrong is seen.
func TestHostileFaults(t *testing.T) {
	c := hostile{says: "beyond"}
	good := outcome{stderr: "verify: f.npy: beyond the file\n", code: 4, took: time.Second, peak: 1 << 20}
	most := limits{patience, 1 << 20, maxText}
	require.Empty(t, c.faults(good, "human", most))
	report := outcome{stdout: `{"exit": 4, "error": "beyond"}`, code: 4}
	require.Empty(t, c.faults(report, "json", most))
	page := outcome{stdout: `<testsuites><testcase><error/></testcase></testsuites>`, code: 4}
	require.Empty(t, c.faults(page, "junit", most))
	for name, change := range map[string]func(o *outcome){
		"code": func(o *outcome) { o.code = 3 }, "killed": func(o *outcome) { o.code = -1 }, "slow": func(o *outcome) { o.took = patience },
		"large": func(o *outcome) { o.peak++ }, "silent": func(o *outcome) { o.stderr = "" }, "long": func(o *outcome) { o.stdout = strings.Repeat("x", maxText) },
		"trace": func(o *outcome) { o.stderr += "goroutine 1 [running]:\n" }, "escape": func(o *outcome) { o.stdout = "\x1b[31m" }, "C1": func(o *outcome) { o.stdout = "\u009b31m" },
		"right to left": func(o *outcome) { o.stderr += "\u202e" }, "return": func(o *outcome) { o.stdout = "\r" },
	} {
		o := good
		change(&o)
		require.Len(t, c.faults(o, "human", most), 1, name)
	}
	for form, texts := range map[string][]string{
		"json":  {``, `{"exit": 4, "error": "x"`, `{"exit": 3, "error": "x"}`, `{"error": "x"}`, `{"exit": 4}`},
		"junit": {`<a>`, `<a></b>`, `<testsuites></testsuites>`},
	} {
		for _, text := range texts {
			require.NotEmpty(t, c.faults(outcome{stdout: text, code: 4}, form, most), text)
		}
	}
}

// hostileFolder is a folder with what the files are held against: q.npy, an orthonormal basis of 64 × 4, g.npy, a gradient
// without component along it, and lora, an adapter whose lora_B a side basis of 64 rows fits.
func hostileFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	q := cosines(64, 4)
	require.NoError(t, npy.WriteFile(filepath.Join(dir, "q.npy"), format.F64, []int{64, 4}, q))
	g := make([]float64, 64)
	for i := range g { // the next of the cosines
		g[i] = math.Sqrt(2.0/64) * math.Cos(math.Pi*(float64(i)+0.5)*5/64)
	}
	require.NoError(t, npy.WriteFile(filepath.Join(dir, "g.npy"), format.F64, []int{64}, g))
	require.NoError(t, loraFolder(filepath.Join(dir, "lora"), make([]float64, 64*8)))
	return dir
}

// cosines returns the d×k numbers √(2/d)·cos(π(i + ½)(j + 1)/d): orthonormal columns, from the discrete cosine transform
// (DCT-II).
func cosines(d, k int) []float64 {
	q := make([]float64, 0, d*k)
	for i := range d {
		for j := range k {
			q = append(q, math.Sqrt(2/float64(d))*math.Cos(math.Pi*(float64(i)+0.5)*float64(j+1)/float64(d)))
		}
	}
	return q
}

// idle returns the peak of a run on a small healthy basis; where memory is not judged, a number that makes nothing too much.
func idle(t *testing.T, dir string) int64 {
	switch {
	case runtime.GOOS != "linux":
		t.Log("memory is not judged: the peak of a process is in KiB on Linux, and in other units elsewhere")
		return math.MaxInt64 / 2
	case testing.Short():
		t.Log("memory is not judged with -short: each measurement starts this test binary, which takes half a second with -race")
		return 0
	}
	var least int64 = math.MaxInt64
	for range 3 {
		o := measure(t, dir, patience, "projection", "--basis", "q.npy")
		require.Zero(t, o.code, o.stderr)
		least = min(least, o.peak)
	}
	return least
}

// survive runs c in every form of report, by default in two, and judges it. Files that are refused are given as a gradient as well.
func (c *hostile) survive(t *testing.T, dir string, idle int64, most limits) {
	size := c.write(t, dir)
	most.peak = idle + 4*size + c.inflated + room
	most.took = max(most.took, time.Duration(size>>16)*100*time.Millisecond)
	args := c.arguments()
	run := measure
	if testing.Short() {
		run = within
	}
	bad := c.faults(run(t, dir, most.took, args...), "human", most)
	forms := []string{"json", "junit"}
	if !cases.All {
		forms = forms[len(c.name)%2:][:1]
	}
	for _, form := range forms {
		if len(bad) == 0 {
			bad = c.faults(within(t, dir, most.took, append(args, "--format", form)...), form, most)
		}
	}
	if c.args == "" && c.code == 0 && len(bad) == 0 {
		args = []string{"projection", "--basis", "q.npy", "--grad", c.path}
		bad = c.faults(within(t, dir, most.took, args...), "human", most)
	}
	switch {
	case c.open != "" && len(bad) == 0 && !testing.Short(): // which does not see memory
		t.Errorf("no longer true: %s. Delete that it is open", c.open)
	case c.open != "":
		t.Skipf("open: %s: %s", c.open, strings.Join(bad, "; "))
	case len(bad) > 0:
		t.Errorf("%s\n%s", strings.Join(args, " "), strings.Join(bad, "\n"))
	}
}

// The hostile corpus of formats.md, section 19, and more of the kind, at the level of the command.
func TestHostileFiles(t *testing.T) {
	dir := hostileFolder(t)
	base := idle(t, dir)
	n := 0
	for _, rows := range [][]hostile{npyRows(), npzRows(), safetensorsRows(), metadataRows(), vectorRows(), adapterRows(), generalRows()} {
		for _, c := range rows {
			n++
			if n%cases.Every != 0 {
				continue
			}
			c.path = fmt.Sprintf("%d-%s", n, c.path)
			t.Run(c.path+": "+c.name, func(t *testing.T) {
				t.Parallel()
				c.survive(t, dir, base, limits{took: patience, text: maxText})
			})
		}
	}
	require.GreaterOrEqual(t, n, 80)
}
