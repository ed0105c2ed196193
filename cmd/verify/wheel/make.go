//go:build ignore

// Make builds verify for the platforms of package wheel and writes their wheels into a folder:
//
//	go run cmd/verify/wheel/make.go -o dist [-only linux/amd64]
//
// Windows is refused: run folders are locked and files replaced by calls that it does not have.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"plumbline/cmd/internal/cli"
	"plumbline/cmd/verify/wheel"
	"plumbline/internal/format"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("o", "dist", "the folder of the wheels")
	only := flag.String("only", "", "one platform, as in linux/amd64")
	flag.Parse()
	if err := build(*dir, *only); err != nil {
		log.Fatal("wheel: ", err)
	}
}

func build(dir, only string) error {
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "wheel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	written := 0
	for _, p := range wheel.Platforms() {
		if only != "" && only != p.GOOS+"/"+p.GOARCH {
			continue
		}
		binary := filepath.Join(tmp, p.GOOS+"-"+p.GOARCH)
		cmd := exec.Command("go", wheel.BuildArgs(binary)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.GOOS, "GOARCH="+p.GOARCH)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s/%s: %w", p.GOOS, p.GOARCH, err)
		}
		c := wheel.Contents{Version: cli.Version, Platform: p, License: license}
		if c.Binary, err = os.ReadFile(binary); err != nil {
			return err
		}
		var out bytes.Buffer
		if err := c.Write(&out); err != nil {
			return err
		}
		target := filepath.Join(dir, c.FileName())
		if err := format.WriteFile(target, func(w io.Writer) error { _, err := w.Write(out.Bytes()); return err }); err != nil {
			return err
		}
		fmt.Printf("%s\t%.1f MB\n", target, float64(out.Len())/1e6)
		written++
	}
	if written == 0 {
		if strings.HasPrefix(only, "windows/") {
			return errors.New("windows: not built, since locks of run folders and the replacing of files are those of Unix; use WSL")
		}
		return fmt.Errorf("-only %s: no platform of a wheel", only)
	}
	return nil
}
