; Native code of the CPU backend; runtime/cpu.py compiles it at the first call. ETIMEDOUT stands for the system's number.
;
; run: calls table[2i](table[2i+1]) for i < n. barrier: args = {counter, devices}; tickets are handed out by the
; counter, and a device waits until the last ticket of its round is taken. It yields the core, for there may be more
; devices than cores.
;
; push and wait work on a queue, whose words are listed at `_QUEUE_WORDS`. A job has parts, one a thread; the first word
; is the number of jobs that are done, times 256, plus the parts of the next one that have been taken. Whoever waits
; takes parts: the device's threads, which wait for ever, and the caller, so that short work need not wait for a
; thread to wake. Waiting is a little spinning, then yielding, then sleep.

declare i32 @sched_yield()
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_timedwait(ptr, ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
define void @tg_run(ptr %table, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %body, label %exit
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %slot = getelementptr { ptr, ptr }, ptr %table, i64 %i
  %f = load ptr, ptr %slot
  %argp = getelementptr { ptr, ptr }, ptr %table, i64 %i, i32 1
  %arg = load ptr, ptr %argp
  call void %f(ptr %arg)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %exit
exit:
  ret void
}
define void @tg_barrier(ptr %args) {
entry:
  %counter = load ptr, ptr %args
  %np = getelementptr i64, ptr %args, i64 1
  %n = load i64, ptr %np
  %ticket = atomicrmw add ptr %counter, i64 1 seq_cst
  %round = udiv i64 %ticket, %n
  %round1 = add i64 %round, 1
  %target = mul i64 %round1, %n
  br label %wait
wait:
  %spins = phi i64 [ 0, %entry ], [ %spins1, %again ]
  %now = load atomic i64, ptr %counter acquire, align 8
  %done = icmp sge i64 %now, %target
  br i1 %done, label %exit, label %more
more:
  %spins1 = add i64 %spins, 1
  %long = icmp ugt i64 %spins1, 256
  br i1 %long, label %yield, label %again
yield:
  %r = call i32 @sched_yield()
  br label %again
again:
  br label %wait
exit:
  ret void
}
define internal void @wake(ptr %queue) {
entry:
  %sleepersp = getelementptr i64, ptr %queue, i64 24
  %mutex = getelementptr i64, ptr %queue, i64 32
  %cond = getelementptr i64, ptr %queue, i64 40
  %sleepers = load atomic i64, ptr %sleepersp seq_cst, align 8
  %some = icmp ne i64 %sleepers, 0
  br i1 %some, label %call, label %exit
call:
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %cond)
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %exit
exit:
  ret void
}
define void @tg_push(ptr %queue, ptr %job, i64 %parts) {
entry:
  %tailp = getelementptr i64, ptr %queue, i64 8
  %tail = load atomic i64, ptr %tailp seq_cst, align 8
  %at = and i64 %tail, 63
  %row = getelementptr [2 x i64], ptr %queue, i64 %at
  %jobp = getelementptr i64, ptr %row, i64 48
  %partsp = getelementptr i64, ptr %row, i64 49
  store ptr %job, ptr %jobp
  store atomic i64 %parts, ptr %partsp monotonic, align 8
  %next = add i64 %tail, 1
  store atomic i64 %next, ptr %tailp seq_cst, align 8
  call void @wake(ptr %queue)
  ret void
}
define internal i1 @open(ptr %queue, i64 %state) {
entry:
  %tailp = getelementptr i64, ptr %queue, i64 8
  %tail = load atomic i64, ptr %tailp seq_cst, align 8
  %number = lshr i64 %state, 8
  %at = and i64 %number, 63
  %row = getelementptr [2 x i64], ptr %queue, i64 %at
  %partsp = getelementptr i64, ptr %row, i64 49
  %parts = load atomic i64, ptr %partsp monotonic, align 8
  %part = and i64 %state, 255
  %some = icmp ult i64 %number, %tail
  %left = icmp ult i64 %part, %parts
  %both = and i1 %some, %left
  ret i1 %both
}
define internal void @run(ptr %queue, i64 %state) {
entry:
  %number = lshr i64 %state, 8
  %part = and i64 %state, 255
  %at = and i64 %number, 63
  %row = getelementptr [2 x i64], ptr %queue, i64 %at
  %jobp = getelementptr i64, ptr %row, i64 48
  %partsp = getelementptr i64, ptr %row, i64 49
  %job = load ptr, ptr %jobp
  %parts = load atomic i64, ptr %partsp monotonic, align 8
  %tablep = getelementptr { ptr, i64 }, ptr %job, i64 %part
  %np = getelementptr { ptr, i64 }, ptr %job, i64 %part, i32 1
  %table = load ptr, ptr %tablep
  %n = load i64, ptr %np
  call void @tg_run(ptr %table, i64 %n)
  %donep = getelementptr i64, ptr %queue, i64 16
  %before = atomicrmw add ptr %donep, i64 1 seq_cst
  %done = add i64 %before, 1
  %last = icmp eq i64 %done, %parts
  br i1 %last, label %finish, label %exit
finish:
  store atomic i64 0, ptr %donep seq_cst, align 8
  %number1 = add i64 %number, 1
  %state1 = shl i64 %number1, 8
  store atomic i64 %state1, ptr %queue seq_cst, align 8
  call void @wake(ptr %queue)
  br label %exit
exit:
  ret void
}
define void @tg_wait(ptr %queue, i64 %jobs, ptr %until) {
entry:
  %sleepers = getelementptr i64, ptr %queue, i64 24
  %mutex = getelementptr i64, ptr %queue, i64 32
  %cond = getelementptr i64, ptr %queue, i64 40
  br label %again
again:
  %spins = phi i64 [ 0, %entry ], [ 0, %claim ], [ 0, %work ], [ 0, %awake ], [ %spins1, %none ], [ %spins1, %yield ]
  %state = load atomic i64, ptr %queue seq_cst, align 8
  %done = lshr i64 %state, 8
  %enough = icmp uge i64 %done, %jobs
  br i1 %enough, label %exit, label %look
look:
  %some = call i1 @open(ptr %queue, i64 %state)
  br i1 %some, label %claim, label %none
claim:
  %state1 = add i64 %state, 1
  %swap = cmpxchg ptr %queue, i64 %state, i64 %state1 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %work, label %again
work:
  call void @run(ptr %queue, i64 %state)
  br label %again
none:
  %spins1 = add i64 %spins, 1
  %brief = icmp ult i64 %spins1, 256
  br i1 %brief, label %again, label %longer
longer:
  %long = icmp ugt i64 %spins1, 320
  br i1 %long, label %sleep, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %again
sleep:
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %s = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %check
check:
  %seen = load atomic i64, ptr %queue seq_cst, align 8
  %seen_done = lshr i64 %seen, 8
  %seen_enough = icmp uge i64 %seen_done, %jobs
  %seen_some = call i1 @open(ptr %queue, i64 %seen)
  %ready = or i1 %seen_enough, %seen_some
  br i1 %ready, label %awake, label %nap
nap:
  %c = call i32 @pthread_cond_timedwait(ptr %cond, ptr %mutex, ptr %until)
  %late = icmp eq i32 %c, ETIMEDOUT
  br i1 %late, label %awake, label %check
awake:
  %timeout = phi i1 [ 0, %check ], [ 1, %nap ]
  %a = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  br i1 %timeout, label %exit, label %again
exit:
  ret void
}
