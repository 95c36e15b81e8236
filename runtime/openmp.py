"""Parallel loops of code that runs without torch: on OpenMP's threads where the program has OpenMP, else in the calling thread.

Kernels call `torch_parallel_for`. In an artefact the call goes to `mlirc_parallel_for`, which asks libgomp (or LLVM's libomp, which has the
same functions) for threads, if that is linked into the program: `-fopenmp` decides, `OMP_NUM_THREADS` and `omp_set_num_threads` say how many.

The references are weak, so that a program without OpenMP links. Such ones do not make a linker take a library either; the model's header has
others for who compiles with `-fopenmp` (`runtime.header`). It is asked for all functions: a static library may be linked in part.
"""

from __future__ import annotations

_TORCH, OWN = "torch_parallel_for", "mlirc_parallel_for"

_NUMBERS = ("omp_get_max_threads", "omp_in_parallel", "omp_get_thread_num", "omp_get_num_threads")

_DECLARATIONS = "\n".join(f"declare extern_weak i32 @{name}()" for name in _NUMBERS)

_ALL_THERE = "\n".join(
    ["  %has0 = icmp ne ptr @GOMP_parallel, null"]
    + [f"  %is{n} = icmp ne ptr @{name}, null\n  %has{n} = and i1 %has{n - 1}, %is{n}" for n, name in enumerate(_NUMBERS, 1)]
).replace(f"%has{len(_NUMBERS)} ", "%has ")

LOOP_IR = f"""
%Loop = type {{ i64, i64, i64, i64, ptr, ptr }}  ; begin, end, numbers in a part, parts, body, its context

declare extern_weak void @GOMP_parallel(ptr, ptr, i32, i32)
{_DECLARATIONS}
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal void @mlirc_parts(ptr %loop) {{
start:
  %begin = load i64, ptr %loop
  %end.at = getelementptr %Loop, ptr %loop, i32 0, i32 1
  %end = load i64, ptr %end.at
  %size.at = getelementptr %Loop, ptr %loop, i32 0, i32 2
  %size = load i64, ptr %size.at
  %parts.at = getelementptr %Loop, ptr %loop, i32 0, i32 3
  %parts = load i64, ptr %parts.at
  %body.at = getelementptr %Loop, ptr %loop, i32 0, i32 4
  %body = load ptr, ptr %body.at
  %context.at = getelementptr %Loop, ptr %loop, i32 0, i32 5
  %context = load ptr, ptr %context.at
  %number = call i32 @omp_get_thread_num()
  %first = zext i32 %number to i64
  %threads = call i32 @omp_get_num_threads()
  %step = zext i32 %threads to i64
  br label %ask
ask:  ; a team may be smaller than what was asked for
  %part = phi i64 [ %first, %start ], [ %next, %run ]
  %more = icmp slt i64 %part, %parts
  br i1 %more, label %run, label %done
run:
  %before = mul i64 %part, %size
  %from = add i64 %begin, %before
  %behind = add i64 %from, %size
  %to = call i64 @llvm.smin.i64(i64 %behind, i64 %end)
  call void %body(i64 %from, i64 %to, ptr %context)
  %next = add i64 %part, %step
  br label %ask
done:
  ret void
}}

define weak_odr hidden i32 @{OWN}(i64 %begin, i64 %end, i64 %grain, ptr %body, ptr %context) {{
start:
  %loop = alloca %Loop
  %count = sub i64 %end, %begin
  %empty = icmp sle i64 %count, 0
  br i1 %empty, label %done, label %there
there:
{_ALL_THERE}
  br i1 %has, label %ask, label %serial
ask:
  %inside = call i32 @omp_in_parallel()
  %free = icmp eq i32 %inside, 0
  br i1 %free, label %divide, label %serial
divide:
  %max = call i32 @omp_get_max_threads()
  %threads = zext i32 %max to i64
  %least = call i64 @llvm.smax.i64(i64 %grain, i64 1)
  %sum = add i64 %count, %least
  %sum.less = sub i64 %sum, 1
  %grains = sdiv i64 %sum.less, %least
  %wanted = call i64 @llvm.smin.i64(i64 %threads, i64 %grains)
  %several = icmp sgt i64 %wanted, 1
  br i1 %several, label %parallel, label %serial
parallel:
  %up = add i64 %count, %wanted
  %up.less = sub i64 %up, 1
  %size = sdiv i64 %up.less, %wanted
  %over = add i64 %count, %size
  %over.less = sub i64 %over, 1
  %parts = sdiv i64 %over.less, %size
  store i64 %begin, ptr %loop
  %end.at = getelementptr %Loop, ptr %loop, i32 0, i32 1
  store i64 %end, ptr %end.at
  %size.at = getelementptr %Loop, ptr %loop, i32 0, i32 2
  store i64 %size, ptr %size.at
  %parts.at = getelementptr %Loop, ptr %loop, i32 0, i32 3
  store i64 %parts, ptr %parts.at
  %body.at = getelementptr %Loop, ptr %loop, i32 0, i32 4
  store ptr %body, ptr %body.at
  %context.at = getelementptr %Loop, ptr %loop, i32 0, i32 5
  store ptr %context, ptr %context.at
  %team = trunc i64 %parts to i32
  call void @GOMP_parallel(ptr @mlirc_parts, ptr %loop, i32 %team, i32 0)
  br label %done
serial:
  call void %body(i64 %begin, i64 %end, ptr %context)
  br label %done
done:
  ret i32 0
}}
"""


def without_torch(obj: bytes) -> bytes:
    """An object of a kernel that calls `mlirc_parallel_for`: a symbol of the same length, so that nothing moves."""
    return obj.replace(f"\0{_TORCH}\0".encode(), f"\0{OWN}\0".encode())
