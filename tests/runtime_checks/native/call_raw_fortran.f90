! call_raw_fortran ARCHIVE BATCH IN OUT: as call_raw.c, with the batch as the last index of Fortran's arrays.
program call_raw_fortran
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, real64
  use torchferry
  implicit none
  type :: variable_array
    real(real64), allocatable :: x1(:), x2(:, :), x3(:, :, :)
    integer :: own = 0
  end type
  type(tf_model) :: model
  type(variable_array), allocatable, target :: ins(:), outs(:)
  type(tf_array), allocatable :: inputs(:), outputs(:)
  type(tf_variable) :: variable
  character(500) :: path, text, from, to
  integer(int32) :: status
  integer :: batch, i, unit

  call get_command_argument(1, path)
  call get_command_argument(2, text)
  call get_command_argument(3, from)
  call get_command_argument(4, to)
  read (text, *) batch
  call model%load(trim(path), status)
  call check()
  allocate (ins(model%input_count()), inputs(model%input_count()))
  allocate (outs(model%output_count()), outputs(model%output_count()))
  open (newunit=unit, file=trim(from), access="stream", form="unformatted", status="old")
  do i = 1, size(ins)
    call model%input(i, variable, status)
    call check()
    call make(ins(i), inputs(i))
    if (ins(i)%own == 0) read (unit) ins(i)%x1
    if (ins(i)%own == 1) read (unit) ins(i)%x2
    if (ins(i)%own == 2) read (unit) ins(i)%x3
  end do
  close (unit)
  do i = 1, size(outs)
    call model%output(i, variable, status)
    call check()
    call make(outs(i), outputs(i))
  end do
  call model%call(inputs, outputs, status)
  call check()
  open (newunit=unit, file=trim(to), access="stream", form="unformatted", status="replace")
  do i = 1, size(outs)
    if (outs(i)%own == 0) write (unit) outs(i)%x1
    if (outs(i)%own == 1) write (unit) outs(i)%x2
    if (outs(i)%own == 2) write (unit) outs(i)%x3
  end do
  close (unit)
  call model%close(status)
  call check()

contains

  subroutine make(array, view)
    type(variable_array), target, intent(inout) :: array
    type(tf_array), intent(out) :: view
    array%own = size(variable%shape)
    select case (array%own)
    case (0)
      allocate (array%x1(batch))
      view = tf_view(array%x1)
    case (1)
      allocate (array%x2(variable%shape(1), batch))
      view = tf_view(array%x2)
    case default
      allocate (array%x3(variable%shape(1), variable%shape(2), batch))
      view = tf_view(array%x3)
    end select
  end subroutine

  subroutine check()
    if (status == TF_OK) return
    write (error_unit, "(3a)") tf_status_name(status), ": ", model%last_error()
    error stop 1
  end subroutine

end program
