package terminal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Run runs a built program on a pseudoterminal of so many columns and rows and returns what it wrote there, with plain line ends.
func Run(t *testing.T, program, dir string, columns, rows int, args ...string) (text string, code int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	defer master.Close()
	unlock := 0
	must(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, unlock))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	must(unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}))
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, slave, slave, slave
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "COLUMNS" && name != "NO_COLOR" && name != "FORCE_COLOR" && name != "CLICOLOR_FORCE" && !strings.HasPrefix(name, "LC_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", "LANG=C.UTF-8")
	must(cmd.Start())
	slave.Close()
	var all bytes.Buffer
	for part := make([]byte, 1<<16); ; {
		n, err := master.Read(part)
		all.Write(part[:n])
		if err != nil { // EIO: nobody has the other side open
			if n != 0 || !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
			break
		}
	}
	_ = cmd.Wait()
	return strings.ReplaceAll(all.String(), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// erased is how a line of progress gives way to the next.
const erased = "\r\x1b[K"

var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Faults says what is wrong with a text on a terminal: a line that is wider than it, a cursor that is moved, words of the text without a
// terminal that are not there, in whatever order.
func Faults(text, plain string, columns int) (faults []string) {
	var kept []string
	for _, line := range strings.Split(colour.ReplaceAllString(text, ""), "\n") {
		states := strings.Split(line, erased) // of a line of progress, the last of which stays
		for _, state := range states[:len(states)-1] {
			if n := utf8.RuneCountInString(state); n > columns {
				faults = append(faults, fmt.Sprintf("%d columns of progress: %q", n, state))
			}
		}
		line = states[len(states)-1]
		kept = append(kept, line)
		if n := utf8.RuneCountInString(line); n > columns {
			faults = append(faults, fmt.Sprintf("%d columns: %q", n, line))
		}
		if strings.ContainsAny(line, "\x1b\r\t") {
			faults = append(faults, fmt.Sprintf("a control character: %q", line))
		}
	}
	letters := map[rune]int{} // of words, without the frames of tables and the digits of times
	count := func(s string, by int) {
		for _, r := range s {
			if unicode.IsLetter(r) {
				letters[r] += by
			}
		}
	}
	count(colour.ReplaceAllString(plain, ""), 1)
	count(strings.Join(kept, "\n"), -1)
	for r, n := range letters {
		if n > 0 {
			faults = append(faults, fmt.Sprintf("%d letters %q of the text are not on the screen", n, r))
		}
	}
	return faults
}
