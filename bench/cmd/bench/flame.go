package main

func (f *runFlags) flame(string, []byte) error { return nil }
