; Native code of the CPU backend: runtime/cpu.py compiles it, and says what it does. ETIMEDOUT and CLOCK: the system's numbers.
declare i32 @sched_yield()
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_timedwait(ptr, ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @clock_gettime(i32, ptr)
define void @tg_run(ptr %table) {
entry:
  br label %next
next:
  %row = phi ptr [ %table, %entry ], [ %row1, %body ]
  %f = load ptr, ptr %row
  %end = icmp eq ptr %f, null
  br i1 %end, label %exit, label %body
body:
  %wordsp = getelementptr ptr, ptr %row, i64 1
  %words = load ptr, ptr %wordsp
  call void %f(ptr %words)
  %row1 = getelementptr ptr, ptr %row, i64 2
  br label %next
exit:
  ret void
}
%share = type { ptr, ptr, i64, i64, i64, i64, ptr, ptr, ptr, i64 }
define void @tg_share(ptr %args) {
entry:
  %a = load %share, ptr %args
  %finished = extractvalue %share %a, 0
  %queues = extractvalue %share %a, 1
  %first = extractvalue %share %a, 2
  %pieces = extractvalue %share %a, 3
  %threads = extractvalue %share %a, 4
  %mine = extractvalue %share %a, 5
  %f = extractvalue %share %a, 6
  %words = extractvalue %share %a, 7
  %told = extractvalue %share %a, 8
  %all = extractvalue %share %a, 9
  br label %queue
queue:
  %turn = phi i64 [ 0, %entry ], [ %turn1, %empty ]
  %number = add i64 %mine, %turn
  %whose = urem i64 %number, %threads
  %tickets = getelementptr [8 x i64], ptr %queues, i64 %whose
  %before = mul i64 %whose, %pieces
  br label %take
take:
  %ticket = atomicrmw add ptr %tickets, i64 1 seq_cst
  %k = sub i64 %ticket, %first
  %some = icmp ult i64 %k, %pieces
  br i1 %some, label %look, label %empty
look:
  %piece = add i64 %before, %k
  %exists = icmp ult i64 %piece, %all
  br i1 %exists, label %work, label %take
work:
  store i64 %piece, ptr %told
  call void %f(ptr %words)
  %d = atomicrmw add ptr %finished, i64 1 seq_cst
  br label %take
empty:
  %turn1 = add i64 %turn, 1
  %more = icmp ult i64 %turn1, %threads
  br i1 %more, label %queue, label %exit
exit:
  %taken = add i64 %pieces, %threads
  %next = add i64 %first, %taken
  %firstp = getelementptr %share, ptr %args, i64 0, i32 2
  store i64 %next, ptr %firstp
  ret void
}
%meet = type { ptr, i64, i64, i64 }
define void @tg_meet(ptr %args) {
entry:
  %a = load %meet, ptr %args
  %counter = extractvalue %meet %a, 0
  %before = extractvalue %meet %a, 1
  %each = extractvalue %meet %a, 2
  %mine = extractvalue %meet %a, 3
  %d = atomicrmw add ptr %counter, i64 %mine seq_cst
  %enough = add i64 %before, %each
  %enoughp = getelementptr %meet, ptr %args, i64 0, i32 1
  store i64 %enough, ptr %enoughp
  br label %look
look:
  %now = load atomic i64, ptr %counter acquire, align 8
  %done = icmp uge i64 %now, %enough
  br i1 %done, label %exit, label %yield
yield:
  %r = call i32 @sched_yield()
  br label %look
exit:
  ret void
}
%arrive = type { ptr, i64, i64, i64 }
define i64 @tg_arrive(ptr %args) {
entry:
  %a = load %arrive, ptr %args
  %own = extractvalue %arrive %a, 0
  %number = extractvalue %arrive %a, 1
  %count = extractvalue %arrive %a, 2
  %looks = extractvalue %arrive %a, 3
  store atomic i64 %number, ptr %own release, align 8
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %there ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %other, label %exit
other:
  %at = add i64 %i, 4
  %whosep = getelementptr ptr, ptr %args, i64 %at
  %whose = load ptr, ptr %whosep
  br label %look
look:
  %n = phi i64 [ 0, %other ], [ %n1, %pause ], [ %n1, %yield ]
  %now = load atomic i64, ptr %whose acquire, align 8
  %done = icmp uge i64 %now, %number
  br i1 %done, label %there, label %late
late:
  %n1 = add i64 %n, 1
  %over = icmp ugt i64 %n1, %looks
  br i1 %over, label %exit, label %pause
pause:
  %long = icmp ugt i64 %n1, 100
  br i1 %long, label %yield, label %look
yield:
  %r = call i32 @sched_yield()
  br label %look
there:
  %i1 = add i64 %i, 1
  br label %next
exit:
  ret i64 %i
}
define void @tg_stamp(ptr %time) {
  %r = call i32 @clock_gettime(i32 CLOCK, ptr %time)
  ret void
}
define internal void @wake(ptr %queue) {
  %mutex = getelementptr i64, ptr %queue, i64 24
  %cond = getelementptr i64, ptr %queue, i64 32
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %cond)
  ret void
}
define internal ptr @row(ptr %queue, i64 %number) {
  %at = and i64 %number, 255
  %rows = getelementptr i64, ptr %queue, i64 40
  %row = getelementptr [2 x i64], ptr %rows, i64 %at
  ret ptr %row
}
define void @tg_push(ptr %queue, ptr %table, i64 %gate) {
  %queuedp = getelementptr i64, ptr %queue, i64 8
  %queued = load atomic i64, ptr %queuedp seq_cst, align 8
  %row = call ptr @row(ptr %queue, i64 %queued)
  store atomic ptr %table, ptr %row monotonic, align 8
  %gatep = getelementptr i64, ptr %row, i64 1
  store atomic i64 %gate, ptr %gatep monotonic, align 8
  %queued1 = add i64 %queued, 1
  store atomic i64 %queued1, ptr %queuedp seq_cst, align 8
  call void @wake(ptr %queue)
  ret void
}
define internal i64 @look(ptr %queue, i64 %taken, i64 %parts) {
  %done = load atomic i64, ptr %queue seq_cst, align 8
  %queuedp = getelementptr i64, ptr %queue, i64 8
  %queued = load atomic i64, ptr %queuedp seq_cst, align 8
  %row = call ptr @row(ptr %queue, i64 %taken)
  %gatep = getelementptr i64, ptr %row, i64 1
  %gate = load atomic i64, ptr %gatep monotonic, align 8
  %some = icmp ult i64 %taken, %queued
  %may = icmp uge i64 %done, %gate
  %open = select i1 %some, i1 %may, i1 false
  %enough = icmp uge i64 %done, %parts
  %one = zext i1 %open to i64
  %seen = select i1 %enough, i64 2, i64 %one
  ret i64 %seen
}
define void @tg_wait(ptr %queue, i64 %parts, ptr %until) {
entry:
  %takenp = getelementptr i64, ptr %queue, i64 16
  %mutex = getelementptr i64, ptr %queue, i64 24
  %cond = getelementptr i64, ptr %queue, i64 32
  br label %again
again:
  %turns = phi i64 [ 0, %entry ], [ 0, %claim ], [ 0, %work ], [ 0, %awake ], [ %turns1, %yield ]
  %taken = load atomic i64, ptr %takenp seq_cst, align 8
  %seen = call i64 @look(ptr %queue, i64 %taken, i64 %parts)
  switch i64 %seen, label %exit [ i64 0, label %none i64 1, label %claim ]
claim:
  %row = call ptr @row(ptr %queue, i64 %taken)
  %table = load atomic ptr, ptr %row monotonic, align 8
  %taken1 = add i64 %taken, 1
  %swap = cmpxchg ptr %takenp, i64 %taken, i64 %taken1 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %work, label %again
work:
  call void @tg_run(ptr %table)
  %d = atomicrmw add ptr %queue, i64 1 seq_cst
  call void @wake(ptr %queue)
  br label %again
none:
  %turns1 = add i64 %turns, 1
  %long = icmp ugt i64 %turns1, 100
  br i1 %long, label %sleep, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %again
sleep:
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %check
check:
  %taken2 = load atomic i64, ptr %takenp seq_cst, align 8
  %seen2 = call i64 @look(ptr %queue, i64 %taken2, i64 %parts)
  %ready = icmp ne i64 %seen2, 0
  br i1 %ready, label %awake, label %nap
nap:
  %c = call i32 @pthread_cond_timedwait(ptr %cond, ptr %mutex, ptr %until)
  %late = icmp eq i32 %c, ETIMEDOUT
  br i1 %late, label %awake, label %check
awake:
  %timeout = phi i1 [ 0, %check ], [ 1, %nap ]
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  br i1 %timeout, label %exit, label %again
exit:
  ret void
}
