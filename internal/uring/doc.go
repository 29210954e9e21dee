// Package uring makes many vectored reads or writes in one system call, with Linux'
// io_uring.
//
// It is for descriptors that never block: each request carries RWF_NOWAIT, is
// executed by the kernel within the call that submits it, and ends with EAGAIN if
// it would have had to wait. Requests are executed in order, so that a [Ring] is
// used like readv and writev, but for their price: entering the kernel costs as
// much as what it then does for a small frame, and here it is paid once.
//
// Where the kernel has no io_uring, or an administrator has forbidden it
// (kernel.io_uring_disabled, seccomp), New fails with the kernel's error.
package uring
