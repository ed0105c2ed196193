// Command compare says what differs between two versions of verify: it builds both, lets each judge everything below golden/, and
// lists the exit codes, verdicts and numbers that are not the same, then, in a count and examples, the texts.
//
//	go run ./cmd/compare OLD [NEW]
//
// OLD and NEW are commits; without NEW the new version is the working tree. Both judge the goldens of the working tree. The exit code
// is 1 if an exit code, a verdict or a number differs: a change that is meant to change none keeps it at 0.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

func main() {
	only := flag.String("only", "", "only command lines that contain this")
	most := flag.Int("texts", 20, "texts to list")
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() > 2 {
		fmt.Fprintln(os.Stderr, "usage: compare [-only TEXT] [-texts N] OLD [NEW]")
		os.Exit(2)
	}
	equal, err := run(flag.Arg(0), flag.Arg(1), *only, *most)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(3)
	}
	if !equal {
		os.Exit(1)
	}
}

func run(older, newer, only string, most int) (equal bool, err error) {
	out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return false, fmt.Errorf("git rev-parse: %w", err)
	}
	root := strings.TrimSpace(string(out))
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	programs := [2]string{filepath.Join(dir, "old"), filepath.Join(dir, "new")}
	for i, commit := range []string{older, newer} {
		if err := build(root, commit, filepath.Join(dir, fmt.Sprint("tree", i)), programs[i]); err != nil {
			return false, err
		}
	}
	list, err := jobs(root)
	if err != nil {
		return false, err
	}
	list = slices.DeleteFunc(list, func(args []string) bool { return !strings.Contains(strings.Join(args, " "), only) })
	if len(list) == 0 {
		return false, errors.New("nothing to judge")
	}
	found := make([][]difference, len(list))
	failed := make([]error, len(list))
	var wait sync.WaitGroup
	slots := make(chan struct{}, 2)
	for i, args := range list {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			found[i], failed[i] = compare(root, programs, args)
		})
	}
	wait.Wait()
	if err := errors.Join(failed...); err != nil {
		return false, err
	}
	count, texts := map[string]int{}, 0
	for i, args := range list {
		for _, d := range found[i] {
			count[d.kind]++
			if d.kind == text {
				if texts++; texts > most {
					continue
				}
			}
			fmt.Printf("%-8s verify %s: %s\n\told %s\n\tnew %s\n", d.kind, strings.Join(args, " "), d.where, d.old, d.new)
		}
	}
	fmt.Printf("%d command lines: %d exit codes, %d verdicts, %d numbers and %d texts differ\n", len(list), count[exit], count[verdict], count[number], count[text])
	return count[exit]+count[verdict]+count[number] == 0, nil
}

// build builds verify of a commit, or of the working tree if there is none.
func build(root, commit, tree, program string) error {
	dir := root
	if commit != "" {
		dir = tree
		if err := os.Mkdir(tree, 0o755); err != nil {
			return err
		}
		archive := exec.Command("git", "-C", root, "archive", commit)
		unpack := exec.Command("tar", "-x", "-C", tree)
		var err error
		if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
			return err
		}
		archive.Stderr, unpack.Stderr = os.Stderr, os.Stderr
		if err := unpack.Start(); err != nil {
			return err
		}
		if err := errors.Join(archive.Run(), unpack.Wait()); err != nil {
			return fmt.Errorf("%s: %w", commit, err)
		}
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", program, "./cmd/verify")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build of %s: %w", commit, err)
	}
	return nil
}

// An answer is what one program says to one command line.
type answer struct {
	exit           int
	stdout, stderr []byte
}

func ask(root, program string, args []string) (answer, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "COLUMNS=140")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return answer{}, err
	}
	return answer{cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.Bytes()}, nil
}

// reports are the commands that have --format json; what the others print is compared line by line.
var reports = []string{"dump", "diff", "checkpoint", "log", "projection", "golden"}

func compare(root string, programs [2]string, args []string) ([]difference, error) {
	asJSON := slices.Contains(reports, args[0])
	if asJSON {
		args = append(slices.Clone(args), "--format", "json")
	}
	var said [2]answer
	for i, p := range programs {
		var err error
		if said[i], err = ask(root, p, args); err != nil {
			return nil, fmt.Errorf("verify %s: %w", strings.Join(args, " "), err)
		}
	}
	return differences(said[0], said[1], asJSON), nil
}
