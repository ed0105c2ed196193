package runlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"plumbline/verify/check"
)

// Follow judges logs that grow, until ctx ends or nothing was written for as long as stall: that is a finding of its own. say is told
// every finding once, when it is first seen. A log that is not there yet is waited for.
func Follow(ctx context.Context, paths []string, o Options, stall, every time.Duration, say func(check.Finding)) (*Report, error) {
	if slices.Contains(paths, "-") {
		return nil, errors.New("stdin is judged at its end; follow the file that it is written to")
	}
	said := map[string]bool{}
	var last *Report
	var size int64 = -1
	grew := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if n := sizeOf(paths); n != size {
			size, grew = n, time.Now()
			r, err := Judge(context.WithoutCancel(ctx), paths, o)
			switch {
			case r != nil: // a file that is cut or broken is judged as far as it goes: it is being written
				last = r
				for _, f := range r.Brief.Findings {
					if !said[f.Name] {
						said[f.Name] = true
						say(f)
					}
				}
			case !errors.Is(err, ErrNothing) && !errors.Is(err, fs.ErrNotExist):
				return nil, err
			}
		}
		if quiet := time.Since(grew); stall > 0 && quiet >= stall {
			o.stalled = quiet
			return Judge(context.WithoutCancel(ctx), paths, o)
		}
		select {
		case <-ctx.Done():
			if last == nil {
				return nil, fmt.Errorf("%v: %w", paths, ErrNothing)
			}
			return last, nil
		case <-tick.C:
		}
	}
}

// sizeOf is the size of all logs together, -2 where there are none yet.
func sizeOf(paths []string) int64 {
	files, _, err := Files(paths)
	if err != nil {
		return -2
	}
	var n int64
	for _, path := range files {
		if info, err := os.Stat(path); err == nil {
			n += info.Size()
		}
	}
	return n
}
