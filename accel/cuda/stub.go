//go:build ignore

// stub makes a library that has every function of CUDA's driver by name and none by content, so that programs with the tag cu can be linked where
// no driver is installed. Whatever is called returns 100, CUDA_ERROR_NO_DEVICE.
//
//	go run stub.go -header cuda/include/cuda.h -o folder
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	header := flag.String("header", "", "cuda.h of CUDA 12.8")
	out := flag.String("o", "", "folder for libcuda.so")
	flag.Parse()
	if err := run(*header, *out); err != nil {
		log.Fatal("make cu: ", err)
	}
}

func run(header, out string) error {
	text, err := os.ReadFile(header)
	if err != nil {
		return err
	}
	// Declared functions, and what macros rename them to: cuMemAlloc is cuMemAlloc_v2.
	names := regexp.MustCompile(`\bcu[A-Z]\w*`).FindAllString(string(text), -1)
	slices.Sort(names)
	names = slices.Compact(names)
	var code strings.Builder
	for _, n := range names {
		fmt.Fprintf(&code, "int %s(void) { return 100; }\n", n)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	source := filepath.Join(out, "stub.c")
	if err := os.WriteFile(source, []byte(code.String()), 0o644); err != nil {
		return err
	}
	if text, err := exec.Command("gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(out, "libcuda.so"), source).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	fmt.Printf("%d functions in %s\n", len(names), filepath.Join(out, "libcuda.so"))
	return nil
}
