package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// progress returns a function that draws how far a run is as a line of w that is drawn over again, nil if w is no terminal: the
// lines of the steps say it there. The line is taken away when the last step is made.
func progress(w io.Writer, live bool, now func() time.Time) func(step, steps int) {
	if !live {
		return nil
	}
	started, first := now(), 0
	return func(step, steps int) {
		if first == 0 {
			first = step // a run that goes on has made the others long ago
		}
		if step >= steps {
			fmt.Fprint(w, "\r\x1b[K")
			return
		}
		const width = 30
		full := width * step / steps
		each := now().Sub(started) / time.Duration(step-first+1)
		fmt.Fprintf(w, "\r\x1b[K[%s%s] %d/%d, %v left", strings.Repeat("#", full), strings.Repeat("-", width-full), step, steps,
			(each * time.Duration(steps-step)).Round(time.Second))
	}
}
